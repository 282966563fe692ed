// What the server sends: see ../../batch.go, edge.go and row.go.

export type Row = {
  seq: number;
  time: number;
  verdict: string;
  from: string;
  fromPort: number;
  to: string;
  toPort: number;
  protocol: string;
  kind: string;
  summary: string;
  reply: boolean;
  node: string;
  rule: string;
};

export type RowArray = [
  number,
  number,
  string,
  string,
  number,
  string,
  number,
  string,
  string,
  string,
  number,
  string,
  string,
];

export type EdgeDelta = {
  from: string;
  to: string;
  protocol: string;
  port?: number;
  flows: number;
  past?: number;
  dropped?: number;
  audited?: number;
  lastDrop?: number;
  rule?: string;
};

export type Lost = { node: string; source: string; count: number };
export type NodeState = { state: string; names: string[] | null; message?: string };

export type Batch = {
  at: number;
  rows?: RowArray[];
  edges?: EdgeDelta[];
  flows?: number;
  skipped?: number;
  edgesLeftOut?: number;
  lost?: Lost[];
  nodes?: NodeState[];
  error?: string;
};

export type Hello = { stream: string; server: string };

export function readRow(a: RowArray): Row {
  return {
    seq: a[0],
    time: a[1],
    verdict: a[2],
    from: a[3],
    fromPort: a[4],
    to: a[5],
    toPort: a[6],
    protocol: a[7],
    kind: a[8],
    summary: a[9],
    reply: a[10] === 1,
    node: a[11],
    rule: a[12],
  };
}

export function isDenied(verdict: string): boolean {
  return verdict === "DROPPED" || verdict === "ERROR";
}

// Vertex is a KIND|NAMESPACE|NAME of the server.
export type Vertex = { id: string; kind: string; namespace: string; name: string };

export function readVertex(id: string): Vertex {
  const [kind = "", namespace = "", name = ""] = id.split("|");
  return { id, kind, namespace, name };
}

export function vertexName(v: Vertex): string {
  return v.namespace ? `${v.namespace}/${v.name}` : v.name;
}

export function withPort(name: string, port: number): string {
  if (!port) return name;
  return name.includes(":") ? `[${name}]:${port}` : `${name}:${port}`;
}

export function clock(ms: number): string {
  const d = new Date(ms);
  const two = (n: number) => String(n).padStart(2, "0");
  return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}.${String(
    d.getMilliseconds(),
  ).padStart(3, "0")}`;
}

export function perSecond(n: number): string {
  if (n === 0) return "0/s";
  return n < 10 ? `${n.toFixed(1)}/s` : `${Math.round(n).toLocaleString("en")}/s`;
}
