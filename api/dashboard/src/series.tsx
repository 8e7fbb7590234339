// Numbers of a resource over the last hours, with its rollouts and the pods that started again.
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { get, type Schemas } from "./api";
import { Chart, clock, type Happened, type Line, shown, type Span } from "./chart";
import type { Resource } from "./model";
import { Empty, Panel, Told } from "./ui";

const AGAIN_MS = 15_000; // as often as pods are read
const HOUR_S = 3600;
const RANGES: [label: string, hours: number, step: number][] = [
  ["1 h", 1, 15],
  ["6 h", 6, 30],
  ["24 h", 24, 60],
];
const TOLD_MAX = 6; // of what happened, the newest
const SEEN_S_MIN = 300; // of the first minutes of a resource a line would be a dot

type Answer = Schemas["ResourceSeries"];

export function Series({ path, resource }: { path: string; resource: Resource }) {
  const [[label, hours, step], choose] = useState(RANGES[0] as (typeof RANGES)[number]);
  const [zoomed, setZoomed] = useState<Span | null>(null);
  const query = useQuery({
    queryKey: [path, "series", hours],
    queryFn: ({ signal }) =>
      get<Answer>(`${path}/series?from=${Math.floor(Date.now() / 1000) - hours * HOUR_S}&step=${step}`, signal),
    refetchInterval: AGAIN_MS,
    placeholderData: keepPreviousData,
  });
  const pick = (range: (typeof RANGES)[number]) => {
    setZoomed(null);
    choose(range);
  };
  return (
    <Panel
      title="Over time"
      aside={
        <div className="actions" role="group" aria-label="Range">
          {zoomed && <button onClick={() => setZoomed(null)}>Show all</button>}
          {RANGES.map((range) => (
            <button key={range[0]} aria-pressed={range[0] === label} onClick={() => pick(range)}>
              {range[0]}
            </button>
          ))}
        </div>
      }
    >
      <Told query={query} what="its numbers">
        {(answer) => <Charts answer={answer} path={path} resource={resource} zoomed={zoomed} zoom={setZoomed} />}
      </Told>
    </Panel>
  );
}

interface ChartsOf {
  answer: Answer;
  path: string;
  resource: Resource;
  zoomed: Span | null;
  zoom: (to: Span | null) => void;
}

function Charts({ answer, path, resource, zoomed, zoom }: ChartsOf) {
  const { times, groups } = useMemo(() => columns(answer), [answer]);
  const history = resource.status?.history;
  const happened = useMemo(() => happenings(answer, history), [answer, history]);
  const end = times.at(-1) ?? answer.from;
  const begin = times[times.findIndex((_, at) => groups.some((lines) => lines.some(({ values }) => values[at] !== null)))] ?? end;
  const all: Span = [Math.max(answer.from, Math.min(begin, happened[0]?.from ?? end, end - SEEN_S_MIN)), end];
  const seen = zoomed ?? all;
  if (groups.length === 0) return <Empty>There are no numbers yet: its pods are read every 15 s.</Empty>;
  const told = happened.filter((each) => each.to >= seen[0] && each.from <= seen[1]);
  return (
    <>
      <div className="charts">
        {groups.map((lines) => (
          <Chart key={lines[0]?.unit} times={times} lines={lines} happened={happened} seen={seen} zoom={zoom} group={path} />
        ))}
      </div>
      {told.length > 0 && (
        <ul className="plain happened" aria-label="What happened">
          {told.slice(-TOLD_MAX).map((each) => (
            <li key={each.to + each.text}>
              <span className={each.bad ? "bad" : "quiet"}>
                <span aria-hidden="true">{each.bad ? "┊" : "│"}</span> {clock(each.to)}
              </span>{" "}
              {each.text}
            </li>
          ))}
          {told.length > TOLD_MAX && <li className="quiet">and {told.length - TOLD_MAX} earlier</li>}
        </ul>
      )}
      <Summary lines={groups.flat()} />
    </>
  );
}

/** The same for those who do not see lines. */
function Summary({ lines }: { lines: Line[] }) {
  return (
    <table className="hidden">
      <caption>Numbers of this range</caption>
      <tbody>
        {lines.map(({ title, unit, values }) => {
          const known = values.filter((value) => value !== null);
          return (
            <tr key={title}>
              <th scope="row">{title}</th>
              <td>
                last {shown(known.at(-1), unit)}, at least {shown(Math.min(...known), unit)}, at most {shown(Math.max(...known), unit)}
              </td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

/** The lines that have a value, those with one unit together. */
function columns({ from, step, series }: Answer): { times: number[]; groups: Line[][] } {
  const groups = new Map<string, Line[]>();
  for (const { title, unit, values } of series)
    if (values.some((value) => value !== null)) groups.set(unit, [...(groups.get(unit) ?? []), { title, unit, values }]);
  const count = series[0]?.values.length ?? 0;
  return { times: Array.from({ length: count }, (_, number) => from + number * step), groups: [...groups.values()] };
}

const RESULTS: Record<string, string> = { Promoted: "took over", Aborted: "was given up", Superseded: "was superseded" };

/** Rollouts and pods that started again, by the time at which they were over. */
function happenings({ marks, from }: Answer, history: Schemas["Attempt"][] | undefined): Happened[] {
  const rollouts = (history ?? []).map((each) => {
    const to = Date.parse(each.finishedAt) / 1000;
    const begun = each.startedAt ? Date.parse(each.startedAt) / 1000 : to;
    const gap = each.writeGapMs == null ? "" : `, writes paused ${each.writeGapMs} ms`;
    return { from: begun, to, text: `generation ${each.generation} ${RESULTS[each.result] ?? each.result}${gap}`, bad: false };
  });
  const pods = marks.map(({ at, text }) => ({ from: at, to: at, text, bad: true }));
  return [...rollouts, ...pods].filter((each) => each.to >= from).sort((a, b) => a.to - b.to);
}
