import type { EdgeDelta } from "./model";

// Rates are those of the last seconds; an edge is red for a minute after its last drop.
const rateSeconds = 5;
export const redFor = 60_000;
const maxEdges = 3000;

// Rate counts events by second.
export class Rate {
  private buckets = new Array<number>(rateSeconds + 1).fill(0);
  private second = 0;

  private advance(now: number): void {
    const second = Math.floor(now / 1000);
    const steps = Math.min(second - this.second, this.buckets.length);
    for (let i = 1; i <= steps; i++) this.buckets[(second - steps + i) % this.buckets.length] = 0;
    this.second = Math.max(second, this.second);
  }

  add(n: number, now: number): void {
    this.advance(now);
    const i = this.second % this.buckets.length;
    this.buckets[i] = (this.buckets[i] ?? 0) + n;
  }

  // get is the mean of the last five seconds and the part of this one.
  get(now: number): number {
    this.advance(now);
    let sum = 0;
    for (const n of this.buckets) sum += n;
    return sum / (rateSeconds + (now % 1000) / 1000);
  }
}

export type Edge = {
  id: string;
  from: string;
  to: string;
  protocol: string;
  port: number;
  flows: number;
  dropped: number;
  audited: number;
  lastDrop: number;
  lastSeen: number;
  rule: string;
  rate: Rate;
  drops: Rate;
};

// Edges are all edges of the stream. Those that were idle longest make room for others.
export class Edges {
  readonly all = new Map<string, Edge>();

  add(d: EdgeDelta, now: number): void {
    const id = `${d.from}>${d.to}>${d.protocol}>${d.port ?? 0}`;
    let e = this.all.get(id);
    if (!e) {
      if (this.all.size >= maxEdges) this.forget();
      e = {
        id,
        from: d.from,
        to: d.to,
        protocol: d.protocol,
        port: d.port ?? 0,
        flows: 0,
        dropped: 0,
        audited: 0,
        lastDrop: 0,
        lastSeen: now,
        rule: "",
        rate: new Rate(),
        drops: new Rate(),
      };
      this.all.set(id, e);
    }
    e.flows += d.flows;
    e.dropped += d.dropped ?? 0;
    e.audited += d.audited ?? 0;
    e.lastSeen = now;
    e.rate.add(d.flows - (d.past ?? 0), now);
    if (d.dropped) {
      if (!d.past) e.drops.add(d.dropped, now);
      e.lastDrop = Math.max(e.lastDrop, d.lastDrop ?? 0);
      e.rule = d.rule ?? e.rule;
    }
  }

  private forget(): void {
    const old = [...this.all.values()].sort((a, b) => a.lastSeen - b.lastSeen).slice(0, maxEdges / 10);
    for (const e of old) this.all.delete(e.id);
  }
}

// Link is all edges between two vertices, in one direction.
export type Link = {
  id: string;
  from: string;
  to: string;
  edges: Edge[];
  rate: number;
  flows: number;
  dropped: number;
  audited: number;
  red: boolean;
  rule: string;
};

export function links(edges: Iterable<Edge>, now: number): Link[] {
  const all = new Map<string, Link>();
  for (const e of edges) {
    const id = `${e.from}>${e.to}`;
    let l = all.get(id);
    if (!l) {
      l = { id, from: e.from, to: e.to, edges: [], rate: 0, flows: 0, dropped: 0, audited: 0, red: false, rule: "" };
      all.set(id, l);
    }
    l.edges.push(e);
    l.rate += e.rate.get(now);
    l.flows += e.flows;
    l.dropped += e.dropped;
    l.audited += e.audited;
    if (isRed(e, now)) {
      l.red = true;
      l.rule = e.rule || l.rule;
    }
  }
  return [...all.values()];
}

export function isRed(e: Edge, now: number): boolean {
  return e.dropped > 0 && now - e.lastDrop < redFor;
}

export function portName(e: { protocol: string; port: number }): string {
  return e.port ? `${e.port}/${e.protocol}` : e.protocol;
}

// ports names the ports of a link, the busiest first.
export function ports(l: Link): string {
  const sorted = [...l.edges].sort((a, b) => b.flows - a.flows);
  const shown = sorted.slice(0, 2).map(portName);
  if (sorted.length > 2) shown.push(`+${sorted.length - 2}`);
  return shown.join(", ");
}
