// What tests start: a browser, and programs, all of which end with the test.
import { chromium, type Browser, type Page } from "@playwright/test";
import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../../..");
export const bin = process.env.MYELIN_BIN ?? path.join(root, "bin");
const artifacts = process.env.MYELIN_UI_ARTIFACTS ?? path.join(root, "bin/ui-test");

// Cleanup runs functions in the reverse order.
export class Cleanup {
  private list: (() => void | Promise<void>)[] = [];
  add(f: () => void | Promise<void>) {
    this.list.push(f);
  }
  async run() {
    for (const f of this.list.reverse()) {
      try {
        await f();
      } catch (e) {
        console.error(e);
      }
    }
    this.list = [];
  }
}

export function temp(cleanup: Cleanup): string {
  const dir = mkdtempSync(path.join(tmpdir(), "myelin-ui-"));
  cleanup.add(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

export function myelin(...args: string[]): string {
  return execFileSync(path.join(bin, "myelin"), args, {
    encoding: "utf8",
    cwd: root,
    timeout: 60_000,
    stdio: ["ignore", "pipe", "pipe"],
  });
}

// start runs a program until the end of the test, and waits for a line of its output.
export function start(cleanup: Cleanup, program: string, args: string[], wanted: RegExp): Promise<RegExpMatchArray> {
  const child: ChildProcess = spawn(program, args, { cwd: root, stdio: ["ignore", "pipe", "pipe"] });
  const ended = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  cleanup.add(async () => {
    if (child.exitCode === null) child.kill("SIGTERM");
    await ended;
  });
  return new Promise((resolve, reject) => {
    let out = "";
    const timer = setTimeout(
      () => reject(new Error(`${program} ${args.join(" ")}: no ${wanted} in:\n${out}`)),
      30_000,
    );
    const read = (data: Buffer) => {
      out += data.toString();
      const match = out.match(wanted);
      if (match) {
        clearTimeout(timer);
        resolve(match);
      }
    };
    child.stdout?.on("data", read);
    child.stderr?.on("data", read);
    void ended.then(() => {
      clearTimeout(timer);
      reject(new Error(`${program} ${args.join(" ")} ended:\n${out}`));
    });
  });
}

function chromiumPath(): string {
  return (
    process.env.MYELIN_CHROMIUM ?? execFileSync("sh", ["-c", "command -v chromium"], { encoding: "utf8" }).trim()
  );
}

// browser is one in a network namespace, or in that of the tests.
export async function browser(cleanup: Cleanup, netns?: string): Promise<Browser> {
  let executablePath = chromiumPath();
  if (netns) {
    const wrapper = path.join(temp(cleanup), "chromium");
    writeFileSync(wrapper, `#!/bin/sh\nexec nsenter --net=/run/netns/${netns} -- '${executablePath}' "$@"\n`);
    chmodSync(wrapper, 0o755);
    executablePath = wrapper;
  }
  const b = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
  cleanup.add(() => b.close());
  return b;
}

// newPage is a page whose errors fail the test: those of scripts, and what the content security policy refuses.
export async function newPage(b: Browser): Promise<{ page: Page; errors: string[] }> {
  const page = await b.newPage({ viewport: { width: 1400, height: 900 }, colorScheme: "light" });
  const errors: string[] = [];
  page.on("pageerror", (e) => errors.push(e.message));
  page.on("console", (m) => {
    if (m.type() === "error") errors.push(m.text());
  });
  return { page, errors };
}

export async function screenshot(page: Page, name: string): Promise<void> {
  mkdirSync(artifacts, { recursive: true });
  await page.screenshot({ path: path.join(artifacts, `${name}.png`) });
}
