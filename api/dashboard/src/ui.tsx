// Small parts that every view uses.
import { useMutation, type UseQueryResult } from "@tanstack/react-query";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { ApiError, type Connection } from "./api";
import type { Health } from "./model";

export const CONNECTION: Record<Connection, string> = {
  connecting: "◌ connecting",
  live: "● live",
  lost: "▲ connection lost, trying again",
  refused: "▲ refused",
};

const SIGNS = { good: "●", busy: "◐", bad: "▲", off: "○" } as const;

export function Badge({ health }: { health: Health }) {
  return (
    <span className={`badge ${health.tone}`} title={health.why}>
      <span aria-hidden="true">{SIGNS[health.tone]}</span> {health.word}
    </span>
  );
}

/** `live` is the state of the stream that the panel shows; only one that is not live is spoken of.
 * Where there is room, two `half` ones stand side by side. */
export function Panel(props: { title: string; aside?: ReactNode; live?: Connection; half?: boolean; children: ReactNode }) {
  const { title, aside, live, half, children } = props;
  const broken = live === "lost" || live === "refused";
  return (
    <section className={`panel${broken ? " stale" : ""}${half ? " half" : ""}`} aria-label={title}>
      <header>
        <h2>{title}</h2>
        {aside}
        {live && live !== "live" && (
          <span className={`connection ${live}`} role="status">
            {CONNECTION[live]}
          </span>
        )}
      </header>
      {children}
    </section>
  );
}

export function Empty({ children }: { children: ReactNode }) {
  return <p className="empty">{children}</p>;
}

export function Loading({ what }: { what: string }) {
  return (
    <p className="empty" role="status">
      Loading {what} …
    </p>
  );
}

export function Failure({ error, again }: { error: Error; again?: () => void }) {
  const trace = error instanceof ApiError ? error.problem.trace_id : undefined;
  return (
    <div className="failure" role="alert">
      <p>{error.message}</p>
      {trace && (
        <p>
          <a href={`#/traces/${trace}`}>See what happened in its trace</a>
        </p>
      )}
      {again && <button onClick={again}>Try again</button>}
    </div>
  );
}

/** What an answer says, or that it is awaited, or why there is none; what was told last stays below the reason. */
export function Told<T>(props: { query: UseQueryResult<T>; what: string; children: (data: T) => ReactNode }) {
  const { query, what, children } = props;
  return (
    <>
      {query.error && <Failure error={query.error} again={() => void query.refetch()} />}
      {query.isPending && <Loading what={what} />}
      {query.data !== undefined && children(query.data)}
    </>
  );
}

export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} aria-labelledby="dialog-title" onClose={onClose}>
      <h2 id="dialog-title">{title}</h2>
      {children}
    </dialog>
  );
}

/** Asks before something is done, and says why it could not be; `label` is what is done. */
export function Confirm(props: {
  label: string;
  /** Of the dialog, where label and name make none. */
  title?: string;
  what: string;
  danger?: boolean | undefined;
  act: () => Promise<unknown>;
  onClose: () => void;
  children: ReactNode;
}) {
  const { label, what, danger, act, onClose, children } = props;
  const run = useMutation({ mutationFn: act });
  return (
    <Dialog title={props.title ?? `${label} ${what}?`} onClose={onClose}>
      {children}
      {run.error && <Failure error={run.error} />}
      <div className="actions">
        <button onClick={onClose}>Cancel</button>
        <button
          className={danger ? "danger primary" : "primary"}
          disabled={run.isPending}
          onClick={() => run.mutate(undefined, { onSuccess: onClose })}
        >
          {label}
        </button>
      </div>
    </Dialog>
  );
}

const ROW_PX = 40;
const ALL_SHOWN_MAX = 60; // up to so many rows no table hides any
const ROWS_MARGIN = 15; // rows drawn above and below what is seen, so that scrolling shows no gap

/** A body of a table whose rows are ROW_PX high: of many only those near the window are drawn. */
export function Rows<T>({ items, row }: { items: T[]; row: (item: T) => ReactNode }) {
  const body = useRef<HTMLTableSectionElement>(null);
  const [first, setFirst] = useState(0);
  const many = items.length > ALL_SHOWN_MAX;
  useEffect(() => {
    if (!many) return;
    const look = () => {
      const above = -(body.current?.getBoundingClientRect().top ?? 0) / ROW_PX;
      const block = Math.floor(above / ROWS_MARGIN - 1) * ROWS_MARGIN; // another block, not another row, draws anew
      setFirst(Math.max(0, block));
    };
    look();
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  }, [many]);
  const start = many ? Math.min(first, Math.max(0, items.length - ROWS_MARGIN)) : 0;
  const count = many ? Math.ceil(window.innerHeight / ROW_PX) + 3 * ROWS_MARGIN : items.length;
  const shown = items.slice(start, start + count);
  const space = (rows: number) => rows > 0 && <tr aria-hidden="true" style={{ height: rows * ROW_PX }} />;
  return (
    <tbody ref={body} className={many ? "rows" : undefined}>
      {space(start)}
      {shown.map(row)}
      {space(items.length - start - shown.length)}
    </tbody>
  );
}

/** Numbers that stand side by side, each under its name. */
export function Facts({ items }: { items: [string, ReactNode][] }) {
  return (
    <dl className="numbers">
      {items.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

const SPARK = { width: 96, height: 20 };

/** The course of a value, newest at the right; decoration beside the value itself. */
export function Spark({ values, most }: { values: number[]; most: number }) {
  const top = Math.max(1, ...values);
  const points = values.map((value, number) => {
    const x = SPARK.width - ((values.length - 1 - number) * SPARK.width) / (most - 1);
    return `${x.toFixed(1)},${(SPARK.height - 1 - (value / top) * (SPARK.height - 2)).toFixed(1)}`;
  });
  return (
    <svg className="spark" viewBox={`0 0 ${SPARK.width} ${SPARK.height}`} {...SPARK} aria-hidden="true">
      <polyline points={points.join(" ")} />
    </svg>
  );
}

/** A table; a heading that begins with # stands above numbers. `even` columns line up with those of other tables.
 * With `rows`, their number, the children are `Rows`. */
export function Table(props: { caption: string; head: string[]; even?: boolean; rows?: number; children: ReactNode }) {
  const { caption, head, even, rows, children } = props;
  return (
    <div className="scroll" tabIndex={0} role="region" aria-label={`${caption}, table`}>
      <table className={even ? "even" : undefined} aria-rowcount={rows === undefined ? undefined : rows + 1}>
        <caption className="hidden">{caption}</caption>
        <thead>
          <tr>
            {head.map((each) => (
              <th key={each} scope="col" className={each.startsWith("#") ? "number" : undefined}>
                {each.replace("#", "")}
              </th>
            ))}
          </tr>
        </thead>
        {rows === undefined ? <tbody>{children}</tbody> : children}
      </table>
    </div>
  );
}
