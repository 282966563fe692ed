import { useEffect, useRef, useState } from "preact/hooks";
import { portName, type Link } from "./edges";
import { clock, isDenied, perSecond, readVertex, vertexName, withPort, type Row } from "./model";
import { errorOf } from "./stream";

type Trace = { from: string; to: string; port: string; command: string };
type Answer = { flow: unknown; rule?: string; trace?: Trace };

// Drawer is beside the page: Escape and the button close it.
export function Drawer({
  title,
  onClose,
  children,
}: {
  title: string;
  onClose(): void;
  children: preact.ComponentChildren;
}) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus(), [title]);
  return (
    <div
      class="drawer"
      role="dialog"
      aria-label={title}
      onKeyDown={(e) => {
        if (e.key === "Escape") {
          e.stopPropagation();
          onClose();
        }
      }}
    >
      <header>
        <h2 tabIndex={-1} ref={heading}>
          {title}
        </h2>
        <button type="button" onClick={onClose} aria-label="Close (Escape)">
          ✕
        </button>
      </header>
      {children}
    </div>
  );
}

export function FlowDetail({ stream, row }: { stream: string; row: Row }) {
  const [answer, setAnswer] = useState<Answer | null>(null);
  const [error, setError] = useState("");
  useEffect(() => {
    const abort = new AbortController();
    setAnswer(null);
    setError("");
    get<Answer>(`/api/flow?stream=${stream}&flow=${row.seq}`, abort.signal).then(setAnswer, (e: Error) => {
      if (!abort.signal.aborted) setError(e.message);
    });
    return () => abort.abort();
  }, [stream, row.seq]);
  const denied = isDenied(row.verdict);
  return (
    <div class="detail">
      <dl>
        <dt>Verdict</dt>
        <dd>
          <span class={`badge ${denied ? "red" : "ok"}`}>
            {denied && "✕ "}
            {row.verdict}
          </span>
        </dd>
        <dt>{denied ? "Denied by" : "Allowed by"}</dt>
        <dd class="rule">{row.rule || "no policy decided about this packet"}</dd>
        <dt>Time</dt>
        <dd>{clock(row.time)}</dd>
        <dt>From</dt>
        <dd>{withPort(row.from, row.fromPort)}</dd>
        <dt>To</dt>
        <dd>{withPort(row.to, row.toPort)}</dd>
        <dt>Protocol</dt>
        <dd>
          {row.protocol}
          {row.reply ? ", a reply" : ""}
        </dd>
        <dt>Event</dt>
        <dd>{row.kind}</dd>
        <dt>Summary</dt>
        <dd>{row.summary}</dd>
        <dt>Node</dt>
        <dd>{row.node}</dd>
      </dl>
      {answer?.trace && <PolicyTrace trace={answer.trace} />}
      <h3>All fields</h3>
      {error && <p class="error">{error}</p>}
      {answer && (
        <dl class="fields">
          {flatten(answer.flow).map(([name, value]) => [<dt key={name}>{name}</dt>, <dd>{value}</dd>])}
        </dl>
      )}
    </div>
  );
}

function PolicyTrace({ trace }: { trace: Trace }) {
  const [result, setResult] = useState("");
  const [copied, setCopied] = useState("");
  useEffect(() => {
    setResult("");
    setCopied("");
  }, [trace.command]);
  const run = () => {
    const q = new URLSearchParams({ from: trace.from, to: trace.to, port: trace.port });
    setResult("asking the agent…");
    get<{ text: string }>(`/api/trace?${q}`).then(
      (a) => setResult(a.text),
      (e: Error) => setResult(e.message),
    );
  };
  // browsers have a clipboard for pages of localhost and of HTTPS alone
  const copy = () => {
    if (!navigator.clipboard) setCopied("select it, and press Ctrl-C");
    else
      navigator.clipboard.writeText(trace.command).then(
        () => setCopied("copied"),
        () => setCopied("not allowed"),
      );
  };
  return (
    <section aria-label="Policy trace">
      <h3>What policies say now</h3>
      <pre class="command" tabIndex={0}>
        {trace.command}
      </pre>
      <p class="buttons">
        <button type="button" onClick={copy}>
          Copy
        </button>
        <button type="button" onClick={run}>
          Run policy trace
        </button>
        <span role="status">{copied}</span>
      </p>
      <pre class="result" role="status" aria-label="Result of policy trace" tabIndex={result ? 0 : -1}>
        {result}
      </pre>
    </section>
  );
}

export function LinkDetail({
  link: l,
  onVertex,
  onBetween,
}: {
  link: Link;
  onVertex(id: string): void;
  onBetween(): void;
}) {
  return (
    <div class="detail">
      <dl>
        <dt>Flows</dt>
        <dd>
          {l.flows.toLocaleString("en")}, {perSecond(l.rate)}
        </dd>
        <dt>Dropped</dt>
        <dd>
          <span class={`badge ${l.red ? "red" : "ok"}`}>
            {l.red && "✕ "}
            {l.dropped}
          </span>
        </dd>
        {l.audited > 0 && [<dt>Audited</dt>, <dd>{l.audited}</dd>]}
        {l.rule && [<dt>Last denied by</dt>, <dd class="rule">{l.rule}</dd>]}
      </dl>
      <table class="list">
        <caption>By port</caption>
        <thead>
          <tr>
            <th scope="col">Port</th>
            <th scope="col" class="number">
              Flows
            </th>
            <th scope="col" class="number">
              Dropped
            </th>
          </tr>
        </thead>
        <tbody>
          {l.edges.map((e) => (
            <tr key={e.id}>
              <th scope="row">{portName(e)}</th>
              <td class="number">{e.flows.toLocaleString("en")}</td>
              <td class="number">{e.dropped.toLocaleString("en")}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="buttons">
        <button type="button" onClick={onBetween}>
          Flows from one to the other
        </button>
        {[l.from, l.to].map((id) => (
          <button type="button" key={id} onClick={() => onVertex(id)}>
            Flows of {vertexName(readVertex(id))}
          </button>
        ))}
      </p>
    </div>
  );
}

export async function get<T>(url: string, signal?: AbortSignal): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(url, { signal });
  } catch (e) {
    throw new Error(`no answer of myelin ui: ${e instanceof Error ? e.message : String(e)}`);
  }
  if (!answer.ok) throw new Error(await errorOf(answer));
  return (await answer.json()) as T;
}

// flatten lists the fields of an object by their paths.
function flatten(value: unknown, path = ""): [string, string][] {
  if (Array.isArray(value) && value.every((v) => typeof v !== "object")) return [[path, value.join(", ")]];
  if (value === null || typeof value !== "object") return [[path, String(value)]];
  const list: [string, string][] = [];
  for (const [key, v] of Object.entries(value)) list.push(...flatten(v, path ? `${path}.${key}` : key));
  return list;
}
