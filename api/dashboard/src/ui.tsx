// Small parts that every view uses.
import { type ReactNode, useEffect, useRef } from "react";
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

/** A table; a heading that begins with # stands above numbers. `even` columns line up with those of other tables. */
export function Table(props: { caption: string; head: string[]; even?: boolean; children: ReactNode }) {
  const { caption, head, even, children } = props;
  return (
    <div className="scroll" tabIndex={0} role="region" aria-label={`${caption}, table`}>
      <table className={even ? "even" : undefined}>
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
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}
