import { readVertex, vertexName } from "./model";

// Filters have the names of Hubble's; see parameters() of ../../stream.go.
export const filterNames = [
  "namespace",
  "pod",
  "service",
  "verdict",
  "protocol",
  "port",
  "ip",
  "label",
  "node-name",
  "type",
  "text",
  "from-pod",
  "to-pod",
  "from-service",
  "to-service",
  "from-label",
  "to-label",
  "from-ip",
  "to-ip",
] as const;

// sided filters have a field only while they are set.
export const sided = filterNames.filter((n) => n.startsWith("from-") || n.startsWith("to-"));

export type Filters = { [name: string]: string };

export function readFilters(search: string): Filters {
  const q = new URLSearchParams(search);
  const f: Filters = {};
  for (const name of filterNames) {
    const value = q.getAll(name).join(",").trim();
    if (value) f[name] = value;
  }
  return f;
}

export function readView(search: string): string {
  return new URLSearchParams(search).get("view") === "health" ? "health" : "flows";
}

export function toQuery(f: Filters): string {
  const q = new URLSearchParams();
  for (const name of filterNames) {
    const value = f[name];
    if (value) q.set(name, value);
  }
  return q.toString();
}

export function pageURL(f: Filters, view: string): string {
  const q = new URLSearchParams(toQuery(f));
  if (view === "health") q.set("view", "health");
  const text = q.toString();
  return text ? `?${text}` : location.pathname;
}

// filterOf shows the flows of one vertex. Names of pods begin with those of their workloads.
export function filterOf(filters: Filters, id: string): Filters {
  return { ...withoutEnds(filters), ...endFilter(id, "") };
}

// filterBetween shows what one vertex sends to another.
export function filterBetween(filters: Filters, from: string, to: string): Filters {
  return { ...withoutEnds(filters), ...endFilter(from, "from-"), ...endFilter(to, "to-") };
}

function endFilter(id: string, side: string): Filters {
  const v = readVertex(id);
  if (v.kind === "Service") return { [`${side}service`]: vertexName(v) };
  if (v.kind !== "outside") return { [`${side}pod`]: vertexName(v) };
  const local = v.name === "multicast" || v.name === "link-local" || v.name === "unknown";
  return { [`${side}label`]: `reserved:${local ? "world" : v.name}` };
}

function withoutEnds(filters: Filters): Filters {
  const rest: Filters = {};
  for (const name of ["verdict", "protocol", "port", "node-name", "type", "text"]) {
    const value = filters[name];
    if (value) rest[name] = value;
  }
  return rest;
}
