import type { Batch, Hello } from "./model";

export type Handlers = {
  hello(h: Hello): void;
  batch(b: Batch): void;
  // failed is called when a stream has ended; fatal: the filters are wrong, and nothing is tried again.
  failed(error: string, fatal: boolean): void;
};

const retryMin = 1000;
const retryMax = 10_000;

// follow reads streams until the signal, and begins another one when one ends.
export async function follow(query: string, on: Handlers, signal: AbortSignal): Promise<void> {
  let delay = retryMin;
  while (!signal.aborted) {
    try {
      const answer = await fetch(`/api/flows?${query}`, { signal });
      if (!answer.ok || !answer.body) {
        const error = await errorOf(answer);
        on.failed(error, answer.status === 400);
        if (answer.status === 400) return;
      } else {
        const error = await read(answer.body, on, () => {
          delay = retryMin;
        });
        on.failed(error || "the stream ended", false);
      }
    } catch (e) {
      if (signal.aborted) return;
      on.failed(`no answer of myelin ui: ${e instanceof Error ? e.message : String(e)}`, false);
    }
    await sleep(delay, signal);
    delay = Math.min(2 * delay, retryMax);
  }
}

async function read(body: ReadableStream<Uint8Array>, on: Handlers, alive: () => void): Promise<string> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  let first = true;
  let error = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return error;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (first) {
        on.hello(JSON.parse(line) as Hello);
        first = false;
        continue;
      }
      const batch = JSON.parse(line) as Batch;
      if (batch.error) error = batch.error;
      else alive();
      on.batch(batch);
    }
  }
}

export async function errorOf(answer: Response): Promise<string> {
  try {
    const body = (await answer.json()) as { error?: string };
    return body.error ?? answer.statusText;
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        resolve();
      },
      { once: true },
    );
  });
}
