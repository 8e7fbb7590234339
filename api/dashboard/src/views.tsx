// A ComputeCluster: its views with their lag, the rows of one of them as they change, and queries.
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { ask, get, type Schemas } from "./api";
import { type Live, useFollow, usePolled } from "./live";
import type { Resource } from "./model";
import { Empty, Facts, Failure, Loading, Panel, Table, Told } from "./ui";

const AGAIN_MS = 1000; // the list of views has no stream
const ROWS_SHOWN_MAX = 200;
const ROWS_KEPT_MAX = 20_000; // of a view in this page; what has more is for queries

type View = Schemas["ViewInfo"];
type Row = Record<string, unknown>;

interface ViewsOf {
  /** Of the ComputeCluster. */
  path: string;
  /** The Dataflow whose views alone are shown. */
  only?: Resource;
  /** Those whose scripts the ComputeCluster keeps. */
  dataflows?: Resource[];
}

export function Views({ path, only, dataflows = [] }: ViewsOf) {
  const script = only?.metadata.name;
  const [wanted, setWanted] = useState<string | null>(null);
  const views = usePolled<Schemas["ViewInfos"]>(`${path}/views`, AGAIN_MS);
  const items = views.data?.items.filter((each) => script === undefined || each.script === script) ?? [];
  const chosen = items.find((each) => each.name === wanted) ?? items[0];
  const from = (name: string) => dataflows.find((each) => each.metadata.name === name);
  return (
    <>
      <Panel title="Views" aside={<span className="quiet">{views.data ? `tick ${views.data.tick.toLocaleString()}` : ""}</span>}>
        <Told query={views} what="the views">
          {() => (
            <>
              {items.length === 0 && <Empty>No script has a view yet.</Empty>}
              {items.length > 0 && <Progress views={items} />}
              {items.length > 0 && (
                <Table caption="Views" head={["View", "Script", "#Final at tick", "#Frontier", "#Ticks behind", "#Behind for", "State"]}>
                  {items.map((each) => (
                    <tr key={each.name}>
                      <th scope="row">
                        <button aria-pressed={each === chosen} onClick={() => setWanted(each.name)}>
                          {each.name}
                        </button>
                      </th>
                      <td>{each.script === null ? "of an earlier script" : <Script name={each.script} of={from(each.script)} />}</td>
                      <td className="number">{each.tick?.toLocaleString() ?? "not built yet"}</td>
                      <td className="number">{each.frontier?.toLocaleString() ?? "–"}</td>
                      <td className="number">{each.lagTicks ?? "–"}</td>
                      <td className="number">{each.lagMs == null ? "–" : `${each.lagMs} ms`}</td>
                      <td className={each.failure ? "bad words" : "nowrap"}>{each.failure ? `▲ ${each.failure}` : standing(each)}</td>
                    </tr>
                  ))}
                </Table>
              )}
            </>
          )}
        </Told>
      </Panel>
      {chosen && <OneView key={`${path}/${chosen.name}`} path={path} view={chosen} />}
      {chosen && <Query key={`query ${path}`} path={path} view={chosen.name} />}
      {views.data && <BadRows path={path} only={only} count={views.data.badRows ?? 0} />}
    </>
  );
}

function Script({ name, of }: { name: string; of: Resource | undefined }) {
  return of ? <a href={`#/dataflows/${of.metadata.namespace}/${name}`}>{name}</a> : name;
}

/** How far the view is that is least far. */
function Progress({ views }: { views: View[] }) {
  const built = views.filter((each) => each.frontier !== null);
  const worst = (what: (view: View) => number | null) => Math.max(...built.map((each) => what(each) ?? 0));
  const known = built.length > 0;
  return (
    <Facts
      items={[
        ["Views built", `${built.length} of ${views.length}`],
        ["Frontier", known ? Math.min(...built.map((each) => each.frontier ?? 0)).toLocaleString() : "–"],
        ["Ticks behind", known ? worst((each) => each.lagTicks).toLocaleString() : "–"],
        ["Behind for", known ? `${worst((each) => each.lagMs).toLocaleString()} ms` : "–"],
      ]}
    />
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
      half
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

interface Change {
  diff: number;
  row: Row;
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
function useRows(path: string): Rows & Live {
  const [found, setFound] = useState(NO_ROWS);
  const live = useFollow(path, () => {
    let counts = new Map<string, { row: Row; count: number }>();
    let pieces: Change[] = []; // of a tick that is not complete yet: if the stream breaks it comes again as a whole
    let fresh = new Set<string>();
    let tick = 0;
    let overflow = false;
    const begin = (anew: boolean) => {
      pieces = [];
      if (!anew) return;
      counts = new Map();
      fresh = new Set();
      overflow = false;
    };
    return {
      begin,
      take({ event, data }) {
        if (event === "error") throw new Error(data);
        if (event === "reset") begin(true);
        if (event !== "snapshot" && event !== "changes" && event !== "progress") return false;
        const told = JSON.parse(data) as { tick: number; complete?: boolean; changes?: Change[] };
        for (const change of told.changes ?? []) pieces.push(change);
        overflow ||= counts.size + pieces.length > ROWS_KEPT_MAX;
        if (told.complete === false) return false;
        for (const { diff, row } of overflow ? [] : pieces) {
          const key = JSON.stringify(row);
          const count = (counts.get(key)?.count ?? 0) + diff;
          if (count > 0) counts.set(key, { row, count });
          else counts.delete(key);
          if (event === "changes") fresh.add(key);
        }
        pieces = [];
        if (overflow) counts.clear();
        tick = told.tick;
        return true;
      },
      publish() {
        const rows = [...counts].flatMap(([key, { row, count }]) =>
          Array.from({ length: count }, (_, copy) => ({ key: `${key}${copy || ""}`, row })),
        );
        rows.sort((a, b) => (a.key < b.key ? -1 : 1));
        setFound({ rows: overflow ? null : rows, fresh, tick, overflow });
        fresh = new Set();
      },
    };
  });
  return { ...found, ...live };
}

function Query({ path, view }: { path: string; view: string }) {
  const [sql, setSql] = useState(`SELECT * FROM ${view} LIMIT 100`);
  const run = useMutation({
    mutationFn: (text: string) => ask<Schemas["QueryAnswer"]>("POST", `${path}/sql`, { sql: text }),
  });
  return (
    <Panel title="Query" half aside={<span className="quiet">{run.data && `right at tick ${run.data.tick.toLocaleString()}`}</span>}>
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

/** `count` is that of all scripts: the rows are asked for again when it grows. */
function BadRows({ path, only, count }: { path: string; only: Resource | undefined; count: number }) {
  const rows = useQuery({
    queryKey: [path, "bad-rows", count],
    queryFn: ({ signal }) => get<Schemas["BadRows"]>(`${path}/bad-rows`, signal),
    placeholderData: (before) => before,
    enabled: count > 0,
  });
  const shown = rows.data?.items.filter((each) => !only || each.script === only.metadata.name).reverse() ?? [];
  const total = only ? Math.max(shown.length, Number(only.status?.["badRows"] ?? 0)) : count;
  if (total === 0) return null;
  return (
    <Panel title="Rows that do not fit" half aside={<span className="bad">▲ {total.toLocaleString()}</span>}>
      <Told query={rows} what="the rows">
        {() => (
          <Table caption="Rows that do not fit" head={["Table", "#Partition", "#Transaction", "#Tick", "What is wrong"]}>
            {shown.map((each) => (
              <tr key={`${each.table}/${each.partition}/${each.transaction}/${each.reason}`}>
                <th scope="row">{each.table}</th>
                <td className="number">{each.partition}</td>
                <td className="number">{each.transaction}</td>
                <td className="number">{each.tick.toLocaleString()}</td>
                <td className="words">{each.reason}</td>
              </tr>
            ))}
          </Table>
        )}
      </Told>
    </Panel>
  );
}
