// A ComputeCluster: its views with their lag, the rows of one of them as they change, and queries.
import { useMutation, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { ApiError, ask, type Connection, follow, get, type Schemas } from "./api";
import { Empty, Failure, Loading, Panel, Table } from "./ui";

const AGAIN_MS = 1000; // the list of views has no stream
const ROWS_SHOWN_MAX = 200;
const ROWS_KEPT_MAX = 20_000; // of a view in this page; what has more is for queries

type View = Schemas["ViewInfo"];
type Row = Record<string, unknown>;

export function Views({ path }: { path: string }) {
  const [wanted, setWanted] = useState<string | null>(null);
  const views = useQuery({
    queryKey: [path, "views"],
    queryFn: ({ signal }) => get<Schemas["ViewInfos"]>(`${path}/views`, signal),
    refetchInterval: AGAIN_MS,
  });
  const items = views.data?.items ?? [];
  const chosen = items.find((each) => each.name === wanted) ?? items[0];
  const badRows = views.data?.badRows ?? 0;
  return (
    <>
      <Panel title="Views" aside={<span className="quiet">{views.data ? `tick ${views.data.tick.toLocaleString()}` : ""}</span>}>
        {views.error && <Failure error={views.error} again={() => void views.refetch()} />}
        {views.isPending && <Loading what="the views" />}
        {views.data && items.length === 0 && <Empty>No script has a view yet.</Empty>}
        {items.length > 0 && (
          <Table caption="Views" head={["View", "Script", "#Final at tick", "#Frontier", "#Ticks behind", "#Behind for", "State"]}>
            {items.map((each) => (
              <tr key={each.name}>
                <th scope="row">
                  <button aria-pressed={each === chosen} onClick={() => setWanted(each.name)}>
                    {each.name}
                  </button>
                </th>
                <td>{each.script ?? "of an earlier script"}</td>
                <td className="number">{each.tick?.toLocaleString() ?? "not built yet"}</td>
                <td className="number">{each.frontier?.toLocaleString() ?? "–"}</td>
                <td className="number">{each.lagTicks ?? "–"}</td>
                <td className="number">{each.lagMs == null ? "–" : `${each.lagMs} ms`}</td>
                <td className={each.failure ? "bad" : ""}>{each.failure ? `▲ ${each.failure}` : standing(each)}</td>
              </tr>
            ))}
          </Table>
        )}
      </Panel>
      {chosen && <OneView key={`${path}/${chosen.name}`} path={path} view={chosen} />}
      {items.length > 0 && <Query path={path} view={items[0]?.name ?? ""} />}
      {badRows > 0 && <BadRows path={path} count={badRows} />}
    </>
  );
}

function standing(view: View): string {
  if (view.tick == null) return "◐ is being built";
  return view.lagTicks ? "◐ catches up" : "● up to date";
}

function OneView({ path, view }: { path: string; view: View }) {
  const { rows, fresh, tick, overflow, state, problem } = useRows(`${path}/views/${view.name}/changes`);
  const shown = rows?.slice(0, ROWS_SHOWN_MAX);
  return (
    <Panel
      title={`View ${view.name}`}
      live={state}
      aside={<span className="quiet">{rows && `${rows.length.toLocaleString()} rows at tick ${tick.toLocaleString()}`}</span>}
    >
      {view.sql && <pre tabIndex={0}>{view.sql}</pre>}
      {problem && <Failure error={problem} />}
      {overflow && <Empty>It has more than {ROWS_KEPT_MAX.toLocaleString()} rows: query it below.</Empty>}
      {!rows && !overflow && !problem && <Loading what="the rows" />}
      {rows?.length === 0 && <Empty>It has no rows at this tick.</Empty>}
      {shown && shown.length > 0 && (
        <Table caption={`Rows of ${view.name}`} head={view.columns.map(heading)}>
          {shown.map((each) => (
            <tr key={each.key} className={fresh.has(each.key) ? "fresh" : undefined}>
              {view.columns.map((column) => (
                <Cell key={column.name} column={column} value={each.row[column.name]} />
              ))}
            </tr>
          ))}
        </Table>
      )}
      {rows && rows.length > ROWS_SHOWN_MAX && <p className="quiet">The first {ROWS_SHOWN_MAX} are shown; a query finds others.</p>}
    </Panel>
  );
}

const NUMERIC = /^(u?int|float|double|decimal|bigint|smallint|tinyint|hugeint|long|real)/i;
const heading = ({ name, type }: Schemas["ViewColumn"]) => (NUMERIC.test(type) ? `#${name}` : name);

function Cell({ column, value }: { column: Schemas["ViewColumn"]; value: unknown }) {
  const text = value == null ? "NULL" : typeof value === "string" ? value : JSON.stringify(value);
  return <td className={NUMERIC.test(column.type) ? "number" : "value"}>{text}</td>;
}

interface Kept {
  key: string;
  row: Row;
}

interface Rows {
  rows: Kept[] | null;
  /** Rows that came with the last change. */
  fresh: ReadonlySet<string>;
  tick: number;
  overflow: boolean;
}

const NO_ROWS: Rows = { rows: null, fresh: new Set(), tick: 0, overflow: false };

/** The rows of a view as they are: a row stands as often as it is in the view. */
function useRows(path: string): Rows & { state: Connection; problem: ApiError | Error | null } {
  const [found, setFound] = useState(NO_ROWS);
  const [state, setState] = useState<Connection>("connecting");
  const [problem, setProblem] = useState<Error | null>(null);
  useEffect(() => {
    const stop = new AbortController();
    let counts = new Map<string, { row: Row; count: number }>();
    let fresh = new Set<string>();
    let tick = 0;
    let overflow = false;
    let frame = 0;
    const publish = () => {
      frame = 0;
      const rows = [...counts].flatMap(([key, { row, count }]) =>
        Array.from({ length: count }, (_, copy) => ({ key: `${key}${copy || ""}`, row })),
      );
      rows.sort((a, b) => (a.key < b.key ? -1 : 1));
      setFound({ rows: overflow ? null : rows, fresh, tick, overflow });
      fresh = new Set();
    };
    const begin = () => {
      counts = new Map();
      fresh = new Set();
      overflow = false;
    };
    void follow(
      path,
      ({ event, data }) => {
        if (event === "error") setProblem(new Error(data));
        if (event === "reset") begin();
        if (event !== "snapshot" && event !== "changes" && event !== "progress") return;
        const told = JSON.parse(data) as { tick: number; complete?: boolean; changes?: { diff: number; row: Row }[] };
        for (const { diff, row } of told.changes ?? []) {
          const key = JSON.stringify(row);
          const count = (counts.get(key)?.count ?? 0) + diff;
          if (count > 0) counts.set(key, { row, count });
          else counts.delete(key);
          if (event === "changes") fresh.add(key);
        }
        overflow ||= counts.size > ROWS_KEPT_MAX;
        if (overflow) counts.clear();
        tick = told.tick;
        if (told.complete !== false) frame ||= requestAnimationFrame(publish);
      },
      (now, why) => {
        if (now === "live") begin(); // the stream begins with all rows
        setState(now);
        setProblem(why ?? null);
      },
      stop.signal,
    );
    return () => {
      stop.abort();
      cancelAnimationFrame(frame);
    };
  }, [path]);
  return { ...found, state, problem };
}

function Query({ path, view }: { path: string; view: string }) {
  const [sql, setSql] = useState(`SELECT * FROM ${view} LIMIT 100`);
  const run = useMutation({
    mutationFn: (text: string) => ask<Schemas["QueryAnswer"]>("POST", `${path}/sql`, { sql: text }),
  });
  return (
    <Panel title="Query" aside={<span className="quiet">{run.data && `right at tick ${run.data.tick.toLocaleString()}`}</span>}>
      <form
        className="line"
        onSubmit={(event) => {
          event.preventDefault();
          run.mutate(sql);
        }}
      >
        <textarea
          aria-label="One SELECT over the views"
          rows={2}
          spellCheck={false}
          value={sql}
          onChange={(event) => setSql(event.target.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run.mutate(sql);
          }}
        />
        <button className="primary" disabled={run.isPending} title="Ctrl+Enter">
          Run
        </button>
        {run.error && <Failure error={run.error} />}
      </form>
      {run.isPending && <Loading what="the answer" />}
      {run.data && run.data.rows.length === 0 && <Empty>No row matches.</Empty>}
      {run.data && run.data.rows.length > 0 && (
        <Table caption="Answer" head={run.data.columns.map(heading)}>
          {run.data.rows.slice(0, ROWS_SHOWN_MAX).map((row, number) => (
            <tr key={number}>
              {run.data.columns.map((column) => (
                <Cell key={column.name} column={column} value={row[column.name]} />
              ))}
            </tr>
          ))}
        </Table>
      )}
    </Panel>
  );
}

function BadRows({ path, count }: { path: string; count: number }) {
  const rows = useQuery({
    queryKey: [path, "bad-rows", count],
    queryFn: ({ signal }) => get<Schemas["BadRows"]>(`${path}/bad-rows`, signal),
    placeholderData: (before) => before,
  });
  return (
    <Panel title="Rows that do not fit" aside={<span className="bad">▲ {count.toLocaleString()}</span>}>
      {rows.error && <Failure error={rows.error} again={() => void rows.refetch()} />}
      {rows.data && (
        <Table caption="Rows that do not fit" head={["Table", "#Partition", "#Transaction", "#Tick", "What is wrong"]}>
          {[...rows.data.items].reverse().map((each) => (
            <tr key={`${each.table}/${each.partition}/${each.transaction}`}>
              <th scope="row">{each.table}</th>
              <td className="number">{each.partition}</td>
              <td className="number">{each.transaction}</td>
              <td className="number">{each.tick}</td>
              <td>{each.reason}</td>
            </tr>
          ))}
        </Table>
      )}
    </Panel>
  );
}
