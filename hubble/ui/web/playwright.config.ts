import { defineConfig } from "@playwright/test";

// One worker: tests share the machine's processors with a lab, and one of them measures.
export default defineConfig({
  testDir: "test",
  workers: 1,
  fullyParallel: false,
  timeout: 120_000,
  expect: { timeout: 10_000 },
  reporter: [["list"]],
  outputDir: "test-results",
});
