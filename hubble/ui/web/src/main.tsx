import { render } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { Connections } from "./connections";
import { Drawer, FlowDetail, LinkDetail } from "./detail";
import { FilterBar } from "./filterbar";
import { filterBetween, filterOf, pageURL, readFilters, readView, type Filters } from "./filters";
import { FlowTable } from "./flows";
import { HealthView } from "./health";
import { ServiceMap, useLinks } from "./map";
import { perSecond, readVertex, vertexName, type Row } from "./model";
import { Store } from "./store";
import "./style.css";

const store = new Store();

function App() {
  const [filters, setFilters] = useState<Filters>(() => readFilters(location.search));
  const [view, setView] = useState(() => readView(location.search));
  const [version, setVersion] = useState(0);
  useEffect(() => store.subscribe(() => setVersion(store.version)), []);
  const query = JSON.stringify(filters);
  useEffect(() => store.start(filters), [query]);
  useEffect(() => {
    const onBack = () => {
      setFilters(readFilters(location.search));
      setView(readView(location.search));
    };
    addEventListener("popstate", onBack);
    return () => removeEventListener("popstate", onBack);
  }, []);
  const go = (f: Filters, v: string) => {
    history.pushState(null, "", pageURL(f, v));
    setFilters(f);
    setView(v);
  };
  return (
    <>
      <a class="skip" href="#main">
        Skip to content
      </a>
      <Top view={view} filters={filters} go={(v) => go(filters, v)} version={version} />
      <div class="visually-hidden" role="log" aria-live="polite" id="announcer">
        {store.announcement}
      </div>
      {view === "health" ? (
        <HealthView store={store} />
      ) : (
        <FlowsView filters={filters} query={query} version={version} setFilters={(f) => go(f, "flows")} />
      )}
    </>
  );
}

function Top({ view, filters, go }: { view: string; filters: Filters; go(view: string): void; version: number }) {
  const now = Date.now();
  const c = store.connection;
  const drops = store.drops.get(now);
  let missing = store.skipped;
  for (const l of store.lost.values()) missing += l.count;
  const link = (name: string, text: string) => (
    <a
      href={pageURL(filters, name)}
      aria-current={view === name ? "page" : undefined}
      onClick={(e) => {
        if (e.ctrlKey || e.metaKey || e.shiftKey) return;
        e.preventDefault();
        go(name);
      }}
    >
      {text}
    </a>
  );
  return (
    <header class="top">
      <h1>Myelin</h1>
      <nav aria-label="Views">
        {link("flows", "Flows")}
        {link("health", "Health")}
      </nav>
      <span
        class={`badge ${c.state === "live" ? "ok" : c.state === "failed" ? "red" : ""}`}
        id="connection"
        role="status"
      >
        {c.state === "live" ? `live: ${store.server}` : c.state === "failed" ? `✕ ${c.error}` : "connecting…"}
      </span>
      <span class="numbers">
        <span id="rate">{perSecond(store.rate.get(now))} flows</span>
        <span class={drops > 0 ? "badge red" : ""}>{perSecond(drops)} dropped</span>
        {missing > 0 && <span class="badge warn">{missing.toLocaleString("en")} not shown</span>}
      </span>
    </header>
  );
}

type Open = { row: Row } | { link: string } | null;

function FlowsView({
  filters,
  query,
  version,
  setFilters,
}: {
  filters: Filters;
  query: string;
  version: number;
  setFilters(f: Filters): void;
}) {
  const links = useLinks(store);
  const [shape, setShape] = useState("map");
  const [open, setOpen] = useState<Open>(null);
  const [frozen, freeze] = useState<Row[] | null>(null);
  const [frozenAt, setFrozenAt] = useState(0);
  const [stream, setStream] = useState("");
  // rows of a stream that has ended have other numbers
  useEffect(() => {
    freeze(null);
    setOpen(null);
    setStream(store.stream);
  }, [store.stream]);
  const hold = (rows: Row[] | null) => {
    freeze(rows);
    setFrozenAt(store.flows);
  };
  const onVertex = (id: string) => setFilters(filterOf(filters, id));
  const close = () => {
    const back = open && "row" in open ? "flow-grid" : "main";
    setOpen(null);
    document.getElementById(back)?.focus();
  };
  const selected = open && "link" in open ? open.link : "";
  // drawn when links change, and not with each batch
  const services = useMemo(
    () =>
      shape === "map" ? (
        <ServiceMap
          links={links}
          resetKey={query}
          onVertex={onVertex}
          onLink={(id) => setOpen({ link: id })}
          selected={selected}
        />
      ) : (
        <Connections links={links} onLink={(id) => setOpen({ link: id })} />
      ),
    [links, query, shape, selected],
  );
  const link = open && "link" in open ? links.find((l) => l.id === open.link) : undefined;
  return (
    <main id="main" tabIndex={-1} class={open ? "with-drawer" : ""}>
      <FilterBar
        filters={filters}
        setFilters={setFilters}
        links={links}
        error={store.connection.fatal ? store.connection.error : ""}
      />
      <section class="panel" aria-label="Services">
        <div class="panel-head">
          <h2>Services</h2>
          <div role="group" aria-label="Show as">
            {["map", "table"].map((s) => (
              <button type="button" key={s} aria-pressed={shape === s} onClick={() => setShape(s)}>
                {s}
              </button>
            ))}
          </div>
        </div>
        {services}
      </section>
      <section class="panel table" aria-label="Flows">
        <div class="panel-head">
          <h2>Flows</h2>
          <button
            type="button"
            aria-pressed={frozen !== null}
            id="pause"
            onClick={() => hold(frozen ? null : store.rows.copy())}
          >
            {frozen ? `Resume (${(store.flows - frozenAt).toLocaleString("en")} new)` : "Pause"}
          </button>
        </div>
        <FlowTable store={store} version={version} frozen={frozen} freeze={hold} onOpen={(row) => setOpen({ row })} />
      </section>
      {open && "row" in open && (
        <Drawer title={`${open.row.from} to ${open.row.to}`} onClose={close}>
          <FlowDetail stream={stream} row={open.row} />
        </Drawer>
      )}
      {link && (
        <Drawer title={`${vertexName(readVertex(link.from))} to ${vertexName(readVertex(link.to))}`} onClose={close}>
          <LinkDetail
            link={link}
            onVertex={onVertex}
            onBetween={() => setFilters(filterBetween(filters, link.from, link.to))}
          />
        </Drawer>
      )}
    </main>
  );
}

render(<App />, document.getElementById("app") as HTMLElement);

// for tests: how many rows have come
Object.defineProperty(window, "myelin", { value: { received: () => store.received, skipped: () => store.skipped } });
