// The page before a real lab: two nodes, a relay that merges their flows, and a policy.
//
//   ┌─ node1 ────────────┐  ┌─ node2 ────────────┐
//   │ client1 (red)      │  │ client2 (blue)     │   NetworkPolicy demo/servers: servers take port http from red alone
//   │ server1            │  │ server2            │   Service demo/web: both servers
//   │ relay, ui, browser │  │                    │
//   └─────────┬──────────┘  └─────────┬──────────┘
//   ══════════╧═══════════════════════╧═══════════ world
import { expect, test, type Browser, type Page } from "@playwright/test";
import axe from "axe-core";
import { execFile } from "node:child_process";
import path from "node:path";
import { bin, browser, Cleanup, myelin, newPage, root, screenshot, start } from "./setup";

const name = `ui${process.pid % 100000}`;
const cleanup = new Cleanup();
let chrome: Browser;
let page: Page;
let errors: string[];
const at = "http://127.0.0.1:12000/";
const server2 = { v4: "", v6: "" }; // addresses, as in URLs

test.beforeAll(async () => {
  cleanup.add(() => {
    myelin("lab", "down", "-n", name);
  });
  myelin(
    "lab",
    "up",
    "-n",
    name,
    "-f",
    "examples/two-nodes",
    "-f",
    "examples/policies",
    ...[
      "kubeProxyReplacement=true",
      "ipv6.enabled=true",
      "autoDirectNodeRoutes=true",
      "hubble.listenAddress=:4244",
      "hubble.tls.enabled=false",
    ].flatMap((s) => ["--set", s]),
  );
  const run = `/run/myelin-lab/${name}/nodes/node1/run`;
  const on = (...args: string[]) => ["lab", "exec", "-n", name, "node1", "--", "myelin", ...args];
  await start(
    cleanup,
    path.join(bin, "myelin"),
    on("relay", "--peer-service", `unix://${run}/hubble.sock`, "--listen", "127.0.0.1:4245"),
    /relay serves/,
  );
  await start(
    cleanup,
    path.join(bin, "myelin"),
    on("ui", "--server", "127.0.0.1:4245", "--socket", `${run}/myelin.sock`, "--listen", "127.0.0.1:12000"),
    /page is at/,
  );
  const pods = JSON.parse(myelin("pod", "list", "--socket", `${run}/myelin.sock`, "-o", "json")) as {
    name: string;
    addresses: string[];
  }[];
  const [v4 = "", v6 = ""] = pods.find((p) => p.name === "server2")?.addresses ?? [];
  Object.assign(server2, { v4, v6: `[${v6}]` });
  chrome = await browser(cleanup, `${name}-node1`);
});

test.afterAll(() => cleanup.run());

test.beforeEach(async () => {
  ({ page, errors } = await newPage(chrome));
});

test.afterEach(async () => {
  await page.close();
  expect(errors).toEqual([]);
});

// call asks a server from a pod, which may be denied. A server that is allowed may need a moment to start.
function call(pod: string, url: string, ...wait: string[]): Promise<boolean> {
  return new Promise((resolve) => {
    execFile(
      path.join(bin, "myelin"),
      ["lab", "exec", "-n", name, pod, "--", "myelin", "lab", "call", url, ...wait],
      { cwd: root },
      (error) => resolve(!error),
    );
  });
}

async function live(query = ""): Promise<void> {
  await page.goto(at + query);
  await expect(page.locator("#connection")).toHaveText(/^live: 127.0.0.1:4245$/);
}

const vertex = (id: string) => page.locator(`[data-vertex="${id}"]`);
const edge = (from: string, to: string) => page.locator(`[data-edge="${from}>${to}"]`);

// accessible examines the page as it is, by the rules of WCAG 2.1 A and AA.
async function accessible(): Promise<void> {
  await page.evaluate(axe.source);
  const found = await page.evaluate(async () => {
    const run = (
      window as unknown as {
        axe: {
          run(
            c: object,
            o: object,
          ): Promise<{
            violations: {
              id: string;
              help: string;
              nodes: { html: string }[];
            }[];
          }>;
        };
      }
    ).axe.run;
    const answer = await run(document as unknown as object, {
      runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
    });
    return answer.violations.map(
      (v) =>
        `${v.id}: ${v.help}: ${v.nodes
          .map((n) => n.html)
          .slice(0, 3)
          .join(" ")}`,
    );
  });
  expect(found).toEqual([]);
}

test("the map shows pods, the Service and the world, by IPv4 and IPv6", async () => {
  await live();
  expect(await call("demo/client1", "http://10.96.0.10/", "--wait", "10s")).toBe(true);
  expect(await call("demo/client1", "http://[fd00:96::10]/", "--wait", "10s")).toBe(true);
  expect(await call("demo/client1", `http://${server2.v4}:8080/`, "--wait", "10s")).toBe(true);
  expect(await call("demo/client1", `http://${server2.v6}:8080/`, "--wait", "10s")).toBe(true);
  expect(await call("demo/client2", "http://198.51.100.1:8080/", "--wait", "10s")).toBe(true);
  for (const id of ["Pod|demo|client1", "Pod|demo|server2", "Service|demo|web", "outside||world"]) {
    await expect(vertex(id)).toBeVisible();
  }
  await expect(page.locator(".group-name", { hasText: "demo" })).toBeVisible();
  await expect(edge("Pod|demo|client1", "Service|demo|web")).toHaveCount(1);
  const direct = edge("Pod|demo|client1", "Pod|demo|server2");
  await expect(direct.locator("title")).toHaveText(/8080\/TCP, \d[\d.]*\/s/);
  await expect(direct).toHaveAttribute("data-state", "ok");
  await expect(edge("Pod|demo|client2", "outside||world").locator("title")).toHaveText(/8080\/TCP/);
  // replies count for the connection, not as one of their own
  await expect(edge("Pod|demo|server2", "Pod|demo|client1")).toHaveCount(0);
  for (const node of ["default/node1", "default/node2"]) {
    await expect(page.locator(".rows .row", { hasText: node }).first()).toBeVisible();
  }
  await page.goto(`${at}?from-pod=demo/client1&to-ip=${server2.v6.slice(1, -1)}`);
  await expect(edge("Pod|demo|client1", "Pod|demo|server2")).toHaveCount(1);
});

for (const family of ["v4", "v6"] as const) {
  test(`a denied connection is red within two seconds and names its rule, ${family}`, async () => {
    const address = server2[family];
    await live(`?from-pod=demo/client2&to-ip=${address.replace(/[[\]]/g, "")}`);
    await page.waitForTimeout(1000);
    const before = await page.locator(".rows .row.denied").count();
    expect(before).toBe(0);
    const red = edge("Pod|demo|client2", "Pod|demo|server2").and(page.locator('[data-state="red"]'));
    const begin = Date.now();
    const seen = page.waitForFunction(
      () =>
        document.querySelector('[data-edge="Pod|demo|client2>Pod|demo|server2"][data-state="red"]') ? Date.now() : 0,
      null,
      { polling: 20, timeout: 10_000 },
    );
    const denied = call("demo/client2", `http://${address}:8080/`);
    const at = await (await seen).jsonValue();
    // from the packet on: how long a client takes to start on a busy machine is not the page's
    const rows = page.locator(".rows .row.denied");
    const first = (await rows.last().locator("span").first().textContent()) ?? "";
    const [h = 0, m = 0, sec = 0] = first.split(":").map(Number);
    const took = at - new Date(begin).setHours(h, m, 0, sec * 1000);
    console.log(`      red ${took.toFixed(0)} ms after the first packet, ${at - begin} ms after the client's start`);
    expect(took).toBeGreaterThanOrEqual(0);
    expect(took).toBeLessThan(2000);
    await expect(page.locator("#announcer")).toHaveText(/dropped: demo\/client2 to demo\/server2: .*demo\/servers/);
    expect(await denied).toBe(false);
    await expect(red.locator("title")).toHaveText(
      /dropped: no rule allowed ingress: isolated by NetworkPolicy demo\/servers/,
    );
    await screenshot(page, `denied-${family}`);
    await page.getByRole("button", { name: "table" }).click();
    await expect(page.locator('[data-link="Pod|demo|client2>Pod|demo|server2"]')).toHaveText(
      /✕ \d+.*NetworkPolicy demo\/servers/,
    );
    await page.locator(".rows .row.denied").first().click();
    const detail = page.getByRole("dialog");
    await expect(detail.locator(".rule")).toHaveText(/NetworkPolicy demo\/servers/);
    await expect(detail.locator(".command")).toHaveText(
      "myelin policy trace --from demo/client2 --to demo/server2 --port 8080/TCP",
    );
    await expect(detail.locator(".fields")).toHaveText(/drop_reason_descPOLICY_DENIED/);
    await detail.getByRole("button", { name: "Run policy trace" }).click();
    await expect(detail.locator(".result")).toHaveText(
      /DENIED[\s\S]*isolated by NetworkPolicy demo\/servers[\s\S]*to allow it/,
    );
  });
}

test("an allowed connection names its rule", async () => {
  await live("?pod=demo/client1&type=policy-verdict");
  expect(await call("demo/client1", `http://${server2.v4}:8080/`, "--wait", "10s")).toBe(true);
  await page.locator(".rows .row", { hasText: "policy-verdict" }).first().click();
  await expect(page.getByRole("dialog").locator(".rule")).toHaveText(
    /ingress: NetworkPolicy demo\/servers spec\.ingress\[0\]/,
  );
});

test("filters are in the URL, and survive a reload", async () => {
  await call("demo/client2", `http://${server2.v4}:8080/`);
  await live();
  await page.getByLabel("Verdict").selectOption("DROPPED");
  await page.getByLabel("Pod", { exact: true }).fill("demo/client2");
  await page.getByLabel("Text").fill("demo/servers");
  await page.keyboard.press("Enter");
  await expect(page).toHaveURL(/verdict=DROPPED/);
  await expect(page).toHaveURL(/pod=demo%2Fclient2/);
  await page.reload();
  await expect(page.getByLabel("Verdict")).toHaveValue("DROPPED");
  await expect(page.getByLabel("Pod", { exact: true })).toHaveValue("demo/client2");
  await expect(page.getByLabel("Text")).toHaveValue("demo/servers");
  await expect(page.locator(".rows .row.denied").first()).toBeVisible();
  await expect(page.locator(".rows .row:not(.denied)")).toHaveCount(0);
  await page.goBack();
  await expect(page.getByLabel("Text")).toHaveValue("");
  await vertex("Pod|demo|client2").click();
  await expect(page).toHaveURL(/pod=demo%2Fclient2/);
});

test("a filter that is wrong is named", async () => {
  await page.goto(`${at}?port=http`);
  await expect(page.getByRole("alert")).toHaveText(/^port http: want a port/);
  await expect(page.getByLabel("Port")).toHaveAttribute("aria-invalid", "true");
  expect(errors.splice(0).join()).toMatch(/400/);
});

test("all can be done with the keyboard", async () => {
  await call("demo/client1", "http://10.96.0.10/", "--wait", "10s");
  await live();
  await expect(page.locator(".rows .row").first()).toBeVisible();
  await page.keyboard.press("Tab");
  await expect(page.locator(".skip")).toBeFocused();
  const grid = page.getByRole("grid");
  for (let i = 0; i < 40 && !(await grid.evaluate((g) => g === document.activeElement)); i++)
    await page.keyboard.press("Tab");
  await expect(grid).toBeFocused();
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  await expect(grid).toHaveAttribute("aria-activedescendant", "flow-1");
  await expect(page.locator("#flow-1")).toHaveAttribute("aria-selected", "true");
  await expect(page.locator("#pause")).toHaveText(/Resume/);
  await page.keyboard.press("End");
  await expect(grid).toHaveAttribute("aria-activedescendant", /flow-\d{2,}/);
  await expect(page.locator(".row.active")).toBeInViewport();
  await page.keyboard.press("Home");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("dialog").locator("h2")).toBeFocused();
  await expect(page.getByRole("dialog").locator(".fields")).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(page.getByRole("dialog")).toHaveCount(0);
  await expect(grid).toBeFocused();
  await page.keyboard.press("Escape");
  await expect(page.locator("#pause")).toHaveText("Pause");
  const nodes = page.locator("[data-vertex]");
  await nodes.first().focus();
  await page.keyboard.press("ArrowRight");
  await expect(nodes.nth(1)).toBeFocused();
  await page.keyboard.press("Enter");
  await expect(page).toHaveURL(/(pod|service|label)=/);
});

for (const scheme of ["light", "dark"] as const) {
  test(`the page is accessible and readable, ${scheme}`, async () => {
    await page.emulateMedia({ colorScheme: scheme });
    await live("?namespace=demo");
    await Promise.all([
      call("demo/client1", "http://10.96.0.10/"),
      call("demo/client1", `http://${server2.v4}:8080/`),
      call("demo/client2", `http://${server2.v4}:8080/`),
    ]);
    await expect(page.locator(".rows .row.denied").first()).toBeVisible();
    await page.waitForTimeout(600);
    await accessible();
    await screenshot(page, `flows-${scheme}`);
    await page.locator(".rows .row.denied").first().click();
    await expect(page.getByRole("dialog").locator(".fields")).toBeVisible();
    await accessible();
    await screenshot(page, `detail-${scheme}`);
    await page.getByRole("button", { name: "table" }).click();
    await accessible();
    await page.getByRole("link", { name: "Health" }).click();
    await expect(page.locator("#maps")).toBeVisible();
    await accessible();
    await screenshot(page, `health-${scheme}`);
  });
}

test("health has nodes and maps, and says which node is away", async () => {
  await live("?view=health");
  const rows = page.locator("#nodes tbody tr");
  await expect(rows).toHaveCount(2);
  await expect(rows.nth(1)).toHaveText(/node2.*connected/);
  await expect(page.locator("#maps tbody tr", { hasText: "policies" })).toHaveText(/Hash\s*\d+ of [\d,]+/);
  myelin("lab", "agent", "-n", name, "stop", "node2");
  await expect(page.locator("#nodes tbody tr", { hasText: "node2" })).toHaveText(/✕/, { timeout: 30_000 });
  await expect(page.locator(".health")).toHaveText(/node2/i);
  myelin("lab", "agent", "-n", name, "start", "node2");
  await expect(page.locator("#nodes tbody tr", { hasText: "node2" })).toHaveText(/✓ connected/, { timeout: 30_000 });
});
