import { useEffect, useRef, useState } from "preact/hooks";
import { links, ports, type Link } from "./edges";
import { curve, Layout, nodeHeight, nodeWidth, spread, type Curve, type Picture, type Placed } from "./layout";
import { perSecond, readVertex, vertexName } from "./model";
import type { Store } from "./store";

const drawEvery = 500;
const minDraw = 200;
const maxLabels = 60;
const maxLinks = 800;
const maxScale = 1.3;

// useLinks are the links of now, twice a second.
export function useLinks(store: Store): Link[] {
  const [list, set] = useState<Link[]>([]);
  useEffect(() => {
    let urgent = store.urgent;
    let drawn = 0;
    const draw = () => {
      drawn = Date.now();
      urgent = store.urgent;
      set(links(store.edges.all.values(), drawn));
    };
    const timer = setInterval(draw, drawEvery);
    const end = store.subscribe(() => {
      if (store.urgent !== urgent && Date.now() - drawn > minDraw) draw();
    });
    draw();
    return () => {
      clearInterval(timer);
      end();
    };
  }, [store]);
  return list;
}

export function describe(l: Link): string {
  const text =
    `${vertexName(readVertex(l.from))} to ${vertexName(readVertex(l.to))}, ${ports(l)}, ${perSecond(l.rate)}`;
  return l.red ? `${text}, ${l.dropped} dropped: ${l.rule}` : text;
}

type Props = {
  links: Link[];
  resetKey: string;
  onVertex(id: string): void;
  onLink(id: string): void;
  selected: string;
};

export function ServiceMap({ links: all, resetKey, onVertex, onLink, selected }: Props) {
  const layout = useRef({ key: resetKey, layout: new Layout() });
  if (layout.current.key !== resetKey) layout.current = { key: resetKey, layout: new Layout() };
  for (const l of all) layout.current.layout.place(l.from, l.to);
  const picture = layout.current.layout.picture();
  const nodes = [...picture.nodes.values()];
  const red = all.filter((l) => l.red).length;
  // the red ones are drawn last, over the others
  const shown = [...all].sort((a, b) => Number(a.red) - Number(b.red) || a.rate - b.rate).slice(-maxLinks);
  const curves = curvesOf(shown, picture);
  const focus = useRoving(nodes.length);
  if (nodes.length === 0) return <p class="empty">No flows yet.</p>;
  return (
    <div class="map-scroll">
      <svg
        viewBox={`0 0 ${picture.width} ${picture.height}`}
        class="map"
        role="group"
        style={{ maxWidth: `${picture.width * maxScale}px` }}
        aria-label={
          `Service map: ${nodes.length} workloads and Services, ${all.length} connections, ${red} with drops. ` +
          "The table of connections has the same as text."
        }
      >
        <Arrows />
        {picture.groups.map((g) => (
          <g key={g.name} aria-hidden="true">
            <rect class="group" x={g.x} y={g.y} width={g.width} height={g.height} rx="8" />
            <text class="group-name" x={g.x + 12} y={g.y + 18}>
              {g.name || "outside the cluster"}
            </text>
          </g>
        ))}
        {shown.map((l) => (
          <Edge key={l.id} link={l} curve={curves.get(l.id)} onLink={onLink} selected={l.id === selected} />
        ))}
        <g onKeyDown={focus.onKeyDown} ref={focus.ref}>
          {nodes.map((n, i) => (
            <Node key={n.id} node={n} tab={i === focus.at} onVertex={onVertex} onFocus={() => focus.set(i)} />
          ))}
        </g>
        {shown.slice(-maxLabels).map((l) => (
          <Label key={l.id} link={l} curve={curves.get(l.id)} onLink={onLink} />
        ))}
      </svg>
      {picture.leftOut > 0 && <p class="note">{picture.leftOut} more are not drawn: filter to see them.</p>}
    </div>
  );
}

// useRoving makes the nodes one stop of the Tab key; arrows lead from one to the other.
function useRoving(count: number) {
  const [at, set] = useState(0);
  const ref = useRef<SVGGElement>(null);
  const onKeyDown = (e: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[e.key];
    if (!step) return;
    e.preventDefault();
    const next = (Math.min(at, count - 1) + step + count) % count;
    set(next);
    (ref.current?.children[next] as SVGElement | undefined)?.focus();
  };
  return { at: Math.min(at, Math.max(0, count - 1)), set, ref, onKeyDown };
}

function Arrows() {
  return (
    <defs>
      {["ok", "red", "audit"].map((name) => (
        <marker
          key={name}
          id={`arrow-${name}`}
          class={`arrow ${name}`}
          viewBox="0 0 8 8"
          refX="7"
          refY="4"
          markerWidth="9"
          markerHeight="9"
          markerUnits="userSpaceOnUse"
          orient="auto"
        >
          <path d="M0 0L8 4L0 8z" />
        </marker>
      ))}
    </defs>
  );
}

function Node({
  node,
  tab,
  onVertex,
  onFocus,
}: {
  node: Placed;
  tab: boolean;
  onVertex(id: string): void;
  onFocus(): void;
}) {
  const short = node.name.length > 21 ? `${node.name.slice(0, 20)}…` : node.name;
  const select = () => onVertex(node.id);
  return (
    <g
      class={`node ${node.kind === "Service" ? "service" : node.kind === "outside" ? "outside" : "workload"}`}
      role="button"
      tabIndex={tab ? 0 : -1}
      data-vertex={node.id}
      onClick={select}
      onFocus={onFocus}
      onKeyDown={(e) => {
        if (e.key === "Enter" || e.key === " ") {
          e.preventDefault();
          select();
        }
      }}
    >
      <title>{vertexName(node)}: show its flows</title>
      <rect
        x={node.x}
        y={node.y}
        width={nodeWidth}
        height={nodeHeight}
        rx={node.kind === "Service" ? nodeHeight / 2 : 5}
      />
      <text class="name" x={node.x + nodeWidth / 2} y={node.y + 18}>
        {short}
      </text>
      <text class="kind" x={node.x + nodeWidth / 2} y={node.y + 33}>
        {node.kind === "outside" ? "" : node.kind}
      </text>
    </g>
  );
}

// curvesOf places the edges, and the labels of the busiest: those with drops first.
function curvesOf(list: Link[], picture: Picture): Map<string, Curve> {
  const all = new Map<string, Curve>();
  const labels: (Curve & { lines: number })[] = [];
  for (const l of [...list].reverse()) {
    const from = picture.nodes.get(l.from);
    const to = picture.nodes.get(l.to);
    if (!from || !to) continue;
    const c = { ...curve(from, to), lines: l.red ? 2 : 1 };
    all.set(l.id, c);
    if (labels.length < maxLabels) labels.push(c);
  }
  spread(labels);
  return all;
}

function stateOf(l: Link): string {
  return l.red ? "red" : l.audited ? "audit" : "ok";
}

function Edge({
  link: l,
  curve: c,
  selected,
  onLink,
}: {
  link: Link;
  curve?: Curve;
  selected: boolean;
  onLink(id: string): void;
}) {
  if (!c) return null;
  const state = stateOf(l);
  const width = 1.2 + Math.min(2.4, Math.log10(1 + l.rate) * 0.8) + (l.red ? 1 : 0);
  return (
    <g
      class={`edge ${state}${selected ? " selected" : ""}${l.rate === 0 && !l.red ? " idle" : ""}`}
      data-edge={l.id}
      data-state={state}
      onClick={() => onLink(l.id)}
      aria-hidden="true"
    >
      <title>{describe(l)}</title>
      <path class="hit" d={c.path} />
      <path class="line" d={c.path} stroke-width={width} marker-end={`url(#arrow-${state})`} />
    </g>
  );
}

function Label({ link: l, curve: c, onLink }: { link: Link; curve?: Curve; onLink(id: string): void }) {
  if (!c) return null;
  return (
    <g class={`edge ${stateOf(l)}`} data-label={l.id} onClick={() => onLink(l.id)} aria-hidden="true">
      <title>{describe(l)}</title>
      <text x={c.x} y={c.y - 3}>
        {ports(l)} {perSecond(l.rate)}
      </text>
      {l.red && (
        <text x={c.x} y={c.y + 9}>
          ✕ {l.dropped.toLocaleString("en")} dropped
        </text>
      )}
    </g>
  );
}
