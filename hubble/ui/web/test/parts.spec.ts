// Parts that need no browser.
import { expect, test } from "@playwright/test";
import { Edges, isRed, links, Rate, redFor } from "../src/edges";
import { pageURL, readFilters, toQuery } from "../src/filters";
import { Layout } from "../src/layout";
import { withPort } from "../src/model";
import { Ring } from "../src/ring";

test("a ring keeps the newest", () => {
  const r = new Ring<number>(3);
  for (let i = 0; i < 8; i++) r.push(i);
  expect(r.copy()).toEqual([7, 6, 5]);
  expect(r.newest(3)).toBeUndefined();
  expect(r.length).toBe(3);
});

test("a rate is that of the last seconds, and ends", () => {
  const r = new Rate();
  for (let s = 0; s < 20; s++) r.add(100, s * 1000);
  expect(r.get(20_000)).toBeCloseTo(100, 5);
  expect(r.get(23_000)).toBeCloseTo(40, 5);
  expect(r.get(60_000)).toBe(0);
});

test("an edge is red for a minute, and flows of the past make no rate", () => {
  const edges = new Edges();
  const now = 1_000_000;
  edges.add(
    {
      from: "Pod|a|x",
      to: "Pod|a|y",
      protocol: "TCP",
      port: 80,
      flows: 3,
      past: 3,
      dropped: 1,
      lastDrop: now - redFor + 1000,
      rule: "r",
    },
    now,
  );
  const [link] = links(edges.all.values(), now);
  expect(link).toMatchObject({ red: true, rule: "r", flows: 3, dropped: 1, rate: 0 });
  const [edge] = edges.all.values();
  expect(isRed(edge!, now + 2000)).toBe(false);
});

test("edges are bounded", () => {
  const edges = new Edges();
  for (let i = 0; i < 20_000; i++) {
    edges.add({ from: "Pod|a|x", to: `Pod|a|y${i}`, protocol: "TCP", port: 80, flows: 1 }, i);
  }
  expect(edges.all.size).toBeLessThanOrEqual(3000);
  expect([...edges.all.values()].at(-1)?.to).toBe("Pod|a|y19999");
});

test("what is placed stays in its column and row", () => {
  const layout = new Layout();
  layout.place("Pod|a|client", "Service|a|web");
  layout.place("Pod|a|client", "Pod|a|server");
  layout.place("outside||world", "Pod|a|client");
  const before = layout.picture().nodes;
  for (let i = 0; i < 50; i++) layout.place(`Pod|a|other${i}`, `Pod|b|server${i}`);
  const after = layout.picture().nodes;
  for (const [id, n] of before) expect(after.get(id)).toMatchObject({ x: n.x, y: n.y });
  expect(before.get("Pod|a|client")!.x).toBeLessThan(before.get("Service|a|web")!.x);
  expect(before.get("Service|a|web")!.x).toBeLessThan(before.get("Pod|a|server")!.x);
  for (let i = 0; i < 500; i++) layout.place(`Pod|c|other${i}`, "Pod|a|client");
  expect(layout.picture().nodes.size).toBe(400);
  expect(layout.picture().leftOut).toBeGreaterThan(0);
});

test("filters go through a URL", () => {
  const f = { pod: "demo/web", text: "a&b=c d", "node-name": "n*" };
  expect(readFilters(`?${toQuery(f)}`)).toEqual(f);
  expect(pageURL(f, "health")).toContain("view=health");
  expect(readFilters("?other=1&verdict=DROPPED&verdict=AUDIT")).toEqual({ verdict: "DROPPED,AUDIT" });
});

test("addresses of IPv6 have brackets before a port", () => {
  expect(withPort("fd00::1", 80)).toBe("[fd00::1]:80");
  expect(withPort("demo/web", 80)).toBe("demo/web:80");
  expect(withPort("fd00::1", 0)).toBe("fd00::1");
});
