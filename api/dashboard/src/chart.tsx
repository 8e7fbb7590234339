// Lines over time: uPlot draws them, and this page its legend, what happened meanwhile, and the keys.
import { type KeyboardEvent, useEffect, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Line {
  title: string;
  unit: string;
  values: (number | null)[];
}

/** Something that happened, from one second since 1970 to another. */
export interface Happened {
  from: number;
  to: number;
  text: string;
  /** Nobody wanted it. */
  bad: boolean;
}

export type Span = [from: number, to: number];

interface ChartOf {
  /** Seconds since 1970, one for each value. */
  times: number[];
  lines: Line[];
  happened: Happened[];
  /** What is seen of the times. */
  seen: Span;
  zoom: (to: Span | null) => void;
  /** Charts of one group show the same moment. */
  group: string;
}

const HEIGHT_PX = 150;
const AXIS_PX = 60;
const LINES = ["--line-1", "--line-2", "--line-3", "--line-4"];
const ZOOMED_S_MIN = 120; // closer there is one reading in eight columns

export function Chart(props: ChartOf) {
  const { times, lines, happened, seen, zoom, group } = props;
  const box = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot>(null);
  const values = useRef<(HTMLElement | null)[]>([]);
  const now = useRef(props); // for what uPlot calls later
  now.current = props;
  const dark = useDark();
  const [said, setSaid] = useState("");
  const names = lines.map((line) => line.title).join(", ");
  useEffect(() => {
    if (!box.current) return;
    const colour = colours(box.current);
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    const unit = lines[0]?.unit ?? "";
    const told = (plot: uPlot) =>
      now.current.lines.forEach((line, number) => {
        const place = values.current[number];
        if (place) place.textContent = shown(readAt(line.values, plot.cursor.idx ?? latest(line.values)), line.unit);
      });
    const made = new uPlot(
      {
        width: box.current.clientWidth,
        height: HEIGHT_PX,
        legend: { show: false },
        cursor: { sync: { key: group }, drag: { x: true, y: false, setScale: false }, y: false },
        scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
        axes: [
          { ...axis, values: (_, at) => at.map(clock), space: 60, size: 30 },
          { ...axis, values: (_, at) => at.map((value) => shown(value, unit, true)), size: AXIS_PX, space: 32 },
        ],
        series: [{}, ...lines.map((_, number) => ({ stroke: colour(lineColour(number)), width: 1.5, points: { show: false } }))],
        hooks: {
          setSelect: [
            (plot) => {
              const { left, width } = plot.select;
              if (width > 8) now.current.zoom(bounded([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]));
              plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            },
          ],
          setCursor: [told],
          setData: [told],
          drawClear: [(plot) => now.current.happened.forEach((each) => mark(plot, each, colour))],
        },
      },
      data(times, lines),
      box.current,
    );
    made.setScale("x", { min: seen[0], max: seen[1] });
    const size = new ResizeObserver(() => made.setSize({ width: box.current?.clientWidth ?? 0, height: HEIGHT_PX }));
    size.observe(box.current);
    chart.current = made;
    return () => {
      size.disconnect();
      made.destroy();
    };
    // Numbers that come later go into the same chart.
  }, [names, group, dark]);
  useEffect(() => {
    chart.current?.batch(() => {
      chart.current?.setData(data(times, lines), false);
      chart.current?.setScale("x", { min: seen[0], max: seen[1] });
    });
  }, [times, lines, happened, seen[0], seen[1]]);
  const press = (event: KeyboardEvent) => {
    const plot = chart.current;
    if (!plot) return;
    // The newest steps are not read yet, and nobody looks for a reading in a gap step by step.
    const read = [...times.keys()].filter((number) => {
      const time = times[number] ?? 0;
      return time >= seen[0] && time <= seen[1] && lines.some(({ values }) => readAt(values, number) != null);
    });
    const at = plot.cursor.idx ?? read.at(-1) ?? 0;
    const move = (number = at) => {
      plot.setCursor({ left: plot.valToPos(times[number] ?? 0, "x"), top: 0 });
      const told = lines.map((line) => `${line.title} ${shown(readAt(line.values, number), line.unit)}`);
      setSaid([clock(times[number] ?? 0), ...told, ...happened.filter((each) => near(each, times, number)).map((each) => each.text)].join("; "));
    };
    const middle = times[at] ?? seen[1];
    const half = (seen[1] - seen[0]) / 4;
    const keys: Record<string, () => void> = {
      ArrowLeft: () => move(read.findLast((number) => number < at) ?? read[0]),
      ArrowRight: () => move(read.find((number) => number > at) ?? read.at(-1)),
      Home: () => move(read[0]),
      End: () => move(read.at(-1)),
      "+": () => zoom(bounded([middle - half, middle + half])),
      "-": () => zoom([Math.max(times[0] ?? 0, seen[0] - 2 * half), Math.min(times.at(-1) ?? 0, seen[1] + 2 * half)]),
      Escape: () => zoom(null),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]?.();
  };
  return (
    <figure className="chart">
      <figcaption>
        {lines.map((line, number) => (
          <span key={line.title}>
            <i style={{ background: `var(${lineColour(number)})` }} /> {line.title}{" "}
            <b ref={(element) => void (values.current[number] = element)}>{shown(line.values[latest(line.values)], line.unit)}</b>
          </span>
        ))}
      </figcaption>
      <div
        ref={box}
        tabIndex={0}
        role="application"
        aria-label={`${names}: lines over time. Arrows move, plus and minus zoom, Escape shows all.`}
        onKeyDown={press}
        onDoubleClick={() => zoom(null)}
      />
      <p className="hidden" role="status">
        {said}
      </p>
    </figure>
  );
}

const lineColour = (number: number) => LINES[number % LINES.length] ?? "";

/** Not closer than there are readings. */
function bounded([from, to]: Span): Span {
  const more = Math.max(0, ZOOMED_S_MIN - (to - from)) / 2;
  return [from - more, to + more];
}

/** A step between two readings may have none: that is no gap, and undefined says so. */
function data(times: number[], lines: Line[]): uPlot.AlignedData {
  const columns = lines.map(({ values }) => values.map((value, at) => (isBetween(values, at) ? undefined : value)));
  return [times, ...columns] as uPlot.AlignedData;
}

function isBetween(values: (number | null)[], at: number): boolean {
  return values[at] === null && values[at - 1] != null && values[at + 1] != null;
}

/** What a line shows there: between two readings the one before. */
const readAt = (values: (number | null)[], at: number) => values[isBetween(values, at) ? at - 1 : at];

function mark(plot: uPlot, { from, to, bad }: Happened, colour: (name: string) => string): void {
  const { ctx, bbox } = plot;
  const [left, right] = [plot.valToPos(from, "x", true), plot.valToPos(to, "x", true)];
  if (right < bbox.left || left > bbox.left + bbox.width) return;
  const start = Math.max(left, bbox.left);
  const end = Math.min(right, bbox.left + bbox.width);
  ctx.save();
  ctx.fillStyle = colour(bad ? "--bad" : "--accent");
  ctx.globalAlpha = 0.15;
  ctx.fillRect(start, bbox.top, end - start, bbox.height);
  ctx.globalAlpha = 1;
  for (let top = bbox.top; right === end && top < bbox.top + bbox.height; top += bad ? 8 : 4) ctx.fillRect(end - 1, top, 2, 4); // dashed: bad
  ctx.restore();
}

/** The newest place that has a value. */
function latest(values: (number | null)[]): number {
  return Math.max(0, values.findLastIndex((value) => value !== null));
}

function near(each: Happened, times: number[], number: number): boolean {
  const [before, after] = [times[number] ?? 0, times[number + 1] ?? Infinity];
  return each.to >= before && each.from < after;
}

/** What a colour of the page is at this moment, for a canvas. */
function colours(place: HTMLElement): (name: string) => string {
  const known = new Map<string, string>();
  return (name) => {
    const found = known.get(name) ?? resolved(place, name);
    known.set(name, found);
    return found;
  };
}

function resolved(place: HTMLElement, name: string): string {
  const probe = place.appendChild(document.createElement("span"));
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function useDark(): boolean {
  const [dark, setDark] = useState(() => matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const change = () => setDark(scheme.matches);
    scheme.addEventListener("change", change);
    return () => scheme.removeEventListener("change", change);
  }, []);
  return dark;
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** The time of day; whole minutes without seconds. */
export const clock = (seconds: number) => CLOCK.format(seconds * 1000).replace(/:00$/, "");

const SIZES: Record<string, [least: number, name: string][]> = {
  bytes: [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]],
  seconds: [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]],
};

/** A value as short as it can be; its unit, too, unless it stands at an axis and is a word. */
export function shown(value: number | null | undefined, unit: string, axis = false): string {
  if (value == null) return "–";
  const [base, per] = unit.endsWith("per second") ? [unit.replace(/ ?per second/, ""), "/s"] : [unit, ""];
  const [size, name] = SIZES[base]?.find(([least]) => Math.abs(value) >= least) ?? [1, SIZES[base] || axis ? "" : base];
  const scaled = value / size;
  const digits = Math.abs(scaled) >= 100 ? 0 : Math.abs(scaled) >= 10 ? 1 : 2;
  return `${scaled.toLocaleString(undefined, { maximumFractionDigits: digits })}${name && ` ${name}`}${per}`;
}
