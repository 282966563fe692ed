import { readVertex, type Vertex } from "./model";

// The layout never moves what it has placed but down: a vertex keeps its column and row for as long as the page is
// open, a namespace its place among the others.

export const nodeWidth = 168;
export const nodeHeight = 42;
const gapX = 100;
const gapY = 22;
const pad = 16;
const title = 26;
const groupGap = 24;
const outsideColumns = 1;
const groupColumns = 3;
const maxVertices = 400;

export type Placed = Vertex & { x: number; y: number };
export type Group = { name: string; x: number; y: number; width: number; height: number };
export type Picture = { nodes: Map<string, Placed>; groups: Group[]; width: number; height: number; leftOut: number };

type Cell = { vertex: Vertex; column: number; row: number };

export class Layout {
  private cells = new Map<string, Cell>();
  private groups = new Map<string, number[]>(); // rows used by column
  private leftOut = new Set<string>();

  // place makes room for both ends of an edge: clients left, Services in the middle, servers right.
  place(from: string, to: string): void {
    this.add(from, 0);
    this.add(to, 2);
  }

  private add(id: string, column: number): void {
    if (this.cells.has(id)) return;
    if (this.cells.size >= maxVertices) {
      if (this.leftOut.size < 10_000) this.leftOut.add(id);
      return;
    }
    const vertex = readVertex(id);
    const group = groupOf(vertex);
    const at = group === "" ? 0 : vertex.kind === "Service" ? 1 : column;
    let used = this.groups.get(group);
    if (!used)
      this.groups.set(group, (used = new Array<number>(group === "" ? outsideColumns : groupColumns).fill(0)));
    const row = used[at] ?? 0;
    used[at] = row + 1;
    this.cells.set(id, { vertex, column: at, row });
  }

  picture(): Picture {
    const groups: Group[] = [];
    const left = this.groups.get("");
    const leftWidth = left ? widthOf(outsideColumns) + groupGap * 3 : 0;
    const at = new Map<string, Group>();
    let y = groupGap;
    for (const [name, used] of this.groups) {
      const height = heightOf(Math.max(...used.map((rows, column) => rows + (rows ? offset(name, column) : 0))));
      const columns = name === "" ? outsideColumns : groupColumns;
      const g = {
        name,
        x: groupGap + (name === "" ? 0 : leftWidth),
        y: name === "" ? groupGap : y,
        width: widthOf(columns),
        height,
      };
      if (name !== "") y += height + groupGap;
      groups.push(g);
      at.set(name, g);
    }
    const nodes = new Map<string, Placed>();
    for (const [id, c] of this.cells) {
      const g = at.get(groupOf(c.vertex)) as Group;
      nodes.set(id, {
        ...c.vertex,
        x: g.x + pad + c.column * (nodeWidth + gapX),
        y: g.y + title + pad / 2 + (c.row + offset(g.name, c.column)) * (nodeHeight + gapY),
      });
    }
    const width = leftWidth + widthOf(groupColumns) + 2 * groupGap + gapX / 2; // for what bends around the right side
    const outside = at.get("");
    const height = Math.max(y, outside ? outside.y + outside.height + groupGap : 0, 120);
    return { nodes, groups, width, height, leftOut: this.leftOut.size };
  }
}

// offset puts Services between the rows of others, so that edges of a row do not pass behind them.
function offset(group: string, column: number): number {
  return group !== "" && column === 1 ? 0.5 : 0;
}

function groupOf(v: Vertex): string {
  return v.kind === "outside" ? "" : v.namespace || "(no namespace)";
}

function widthOf(columns: number): number {
  return columns * nodeWidth + (columns - 1) * gapX + 2 * pad;
}

function heightOf(rows: number): number {
  return title + rows * (nodeHeight + gapY) + pad / 2;
}

export type Curve = { path: string; x: number; y: number };

// curve is the path of an edge, and the point of it where its label is: never behind a node.
export function curve(from: Placed, to: Placed): Curve {
  const right = (p: Placed) => p.x + nodeWidth;
  const y1 = from.y + nodeHeight / 2 - 6;
  const y2 = to.y + nodeHeight / 2 + (from.id === to.id ? 10 : -6);
  if (from.x === to.x) {
    // the same column: around its right side
    const bend = from.id === to.id ? 50 : 40 + Math.min(50, Math.abs(to.y - from.y) / 8);
    return bezier([right(from), y1, right(from) + bend, right(to) + bend, right(to), y2], right(from) + gapX / 2);
  }
  if (to.x < from.x) {
    // back: lower than the edges that lead forth
    const bend = Math.max(30, (from.x - right(to)) / 2);
    return bezier([from.x, y1 + 16, from.x - bend, right(to) + bend, right(to), y2 + 16], from.x - gapX / 2);
  }
  const bend = Math.max(30, (to.x - right(from)) / 2);
  return bezier([right(from), y1, right(from) + bend, to.x - bend, to.x, y2], right(from) + gapX / 2);
}

function bezier([x1, y1, c1, c2, x2, y2]: [number, number, number, number, number, number], labelX: number): Curve {
  let best = 0.5;
  let away = Infinity;
  for (let t = 0.05; t < 1; t += 0.05) {
    const x = (1 - t) ** 3 * x1 + 3 * (1 - t) ** 2 * t * c1 + 3 * (1 - t) * t * t * c2 + t ** 3 * x2;
    if (Math.abs(x - labelX) < away) {
      away = Math.abs(x - labelX);
      best = t;
    }
  }
  const y = (1 - best) ** 2 * (1 + 2 * best) * y1 + best * best * (3 - 2 * best) * y2;
  return { path: `M${x1} ${y1}C${c1} ${y1} ${c2} ${y2} ${x2} ${y2}`, x: labelX, y };
}

// spread moves labels down until none covers another.
export function spread(labels: { x: number; y: number; lines: number }[]): void {
  const line = 12;
  const done: { x: number; y: number; lines: number }[] = [];
  for (const l of labels) {
    for (let tries = 0; tries < 20; tries++) {
      const hit = done.find(
        (d) => Math.abs(d.x - l.x) < gapX && l.y < d.y + d.lines * line && d.y < l.y + l.lines * line,
      );
      if (!hit) break;
      l.y = hit.y + hit.lines * line;
    }
    done.push(l);
  }
}
