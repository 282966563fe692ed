import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { clock, isDenied, withPort, type Row } from "./model";
import type { Store } from "./store";

const rowHeight = 26;
const overscan = 6;

type Props = {
  store: Store;
  version: number;
  onOpen(row: Row): void;
  frozen: Row[] | null;
  freeze(rows: Row[] | null): void;
};

const columns = ["Time", "Verdict", "From", "To", "Protocol", "Event", "Rule or summary", "Node"];

// FlowTable draws the rows that are visible. What is read stays where it is: below the top, or with a row selected, the
// table shows the flows of that moment, and says how many have come since.
export function FlowTable({ store, onOpen, frozen, freeze }: Props) {
  const scroller = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(300);
  const [active, setActive] = useState(-1);
  const count = frozen ? frozen.length : store.rows.length;
  const get = (i: number) => (frozen ? frozen[i] : store.rows.newest(i));

  useLayoutEffect(() => {
    const el = scroller.current;
    if (!el) return;
    const observer = new ResizeObserver(() => setHeight(el.clientHeight));
    observer.observe(el);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (!frozen) {
      setActive(-1);
      if (scroller.current) scroller.current.scrollTop = 0;
    }
  }, [frozen]);

  const hold = () => {
    if (!frozen) freeze(store.rows.copy());
  };
  const onScroll = () => {
    const el = scroller.current;
    if (!el) return;
    setTop(el.scrollTop);
    if (el.scrollTop > 0) hold();
  };
  const select = (i: number) => {
    hold();
    const to = Math.max(0, Math.min(count - 1, i));
    setActive(to);
    const el = scroller.current;
    if (!el) return;
    if (to * rowHeight < el.scrollTop) el.scrollTop = to * rowHeight;
    else if ((to + 2) * rowHeight > el.scrollTop + el.clientHeight) {
      // with the head
      el.scrollTop = (to + 2) * rowHeight - el.clientHeight;
    }
  };
  const page = Math.max(1, Math.floor(height / rowHeight) - 2);
  const onKeyDown = (e: KeyboardEvent) => {
    const moves: Record<string, number> = {
      ArrowDown: active + 1,
      ArrowUp: Math.max(0, active - 1),
      PageDown: active + page,
      PageUp: active - page,
      Home: 0,
      End: count - 1,
    };
    const to = moves[e.key];
    if (to !== undefined && count > 0) {
      e.preventDefault();
      select(to);
    } else if (e.key === "Enter" && active >= 0) {
      e.preventDefault();
      const row = get(active);
      if (row) onOpen(row);
    } else if (e.key === "Escape" && frozen) {
      freeze(null);
    }
  };
  const first = Math.max(0, Math.floor(top / rowHeight) - overscan);
  const last = Math.min(count, Math.ceil((top + height) / rowHeight) + overscan);
  const visible: preact.JSX.Element[] = [];
  for (let i = first; i < last; i++) {
    const row = get(i);
    if (!row) continue;
    visible.push(
      <FlowRow
        key={i - first}
        row={row}
        index={i}
        active={i === active}
        onClick={() => {
          select(i);
          onOpen(row);
        }}
      />,
    );
  }
  return (
    <div
      class="grid"
      role="grid"
      id="flow-grid"
      aria-label="Flows, the newest first"
      aria-rowcount={count + 1}
      aria-colcount={columns.length}
      aria-readonly="true"
      tabIndex={0}
      onKeyDown={onKeyDown}
      onScroll={onScroll}
      ref={scroller}
      aria-activedescendant={active >= 0 ? `flow-${active}` : undefined}
    >
      <div role="rowgroup" class="head">
        <div role="row" class="row" aria-rowindex={1}>
          {columns.map((c, i) => (
            <span key={c} role="columnheader" aria-colindex={i + 1}>
              {c}
            </span>
          ))}
        </div>
      </div>
      {count === 0 ? (
        <div role="rowgroup">
          <div role="row">
            <p role="gridcell" class="empty">
              No flows match.
            </p>
          </div>
        </div>
      ) : (
        <div class="rows" role="rowgroup" style={{ height: `${count * rowHeight}px` }}>
          {visible}
        </div>
      )}
    </div>
  );
}

function FlowRow({ row: r, index, active, onClick }: { row: Row; index: number; active: boolean; onClick(): void }) {
  const state = isDenied(r.verdict) ? " denied" : r.verdict === "AUDIT" ? " audited" : "";
  const cells = [
    clock(r.time),
    (isDenied(r.verdict) ? "✕ " : "") + r.verdict,
    withPort(r.from, r.fromPort),
    (r.reply ? "↩ " : "") + withPort(r.to, r.toPort),
    r.protocol,
    r.kind,
    r.rule || r.summary,
    r.node,
  ];
  return (
    <div
      role="row"
      id={`flow-${index}`}
      class={`row${state}${active ? " active" : ""}`}
      aria-rowindex={index + 2}
      aria-selected={active}
      onClick={onClick}
      style={{ transform: `translateY(${index * rowHeight}px)` }}
    >
      {cells.map((c, i) => (
        <span key={i} role="gridcell" aria-colindex={i + 1}>
          {c}
        </span>
      ))}
    </div>
  );
}
