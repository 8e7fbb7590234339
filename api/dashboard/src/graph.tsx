// Pictures of boxes and arrows, and for screen readers the same as a table: who calls whom in a trace, what uses what.
import type { ReactNode } from "react";
import type { Calls, Graph } from "./spans";
import { Panel } from "./ui";

const BOX = { width: 168, height: 44 };
const GAP = { x: 128, y: 28 };
const EDGE_PX = 16;

export interface Box {
  key: string;
  name: string;
  note: string;
  /** From the left, and from the top. */
  layer: number;
  place: number;
}

export interface Arrow {
  from: string;
  to: string;
  label: string;
  /** The whole of it: who does what to whom, and how much of it. */
  words: [who: string, what: string];
  failed: boolean;
}

const left = (box: Box) => EDGE_PX + box.layer * (BOX.width + GAP.x);
const top = (box: Box) => EDGE_PX + box.place * (BOX.height + GAP.y);
const words = ({ count, failed }: Calls) => (failed ? `${count} calls, ${failed} failed` : count === 1 ? "1 call" : `${count} calls`);

export function ServiceGraph({ graph: { programs, calls } }: { graph: Graph }) {
  const own = (name: string) => calls.find((call) => call.from === name && call.to === name);
  const boxes = programs.map((each) => {
    const facts = [each.spans === 1 ? "1 span" : `${each.spans} spans`, each.instances > 1 && `${each.instances} processes`];
    const note = [...facts, own(each.name) && `↻ ${own(each.name)?.count}`].filter(Boolean).join(" · ");
    return { key: each.name, name: each.name, note, layer: each.layer, place: each.place };
  });
  const arrows = calls.map((each) => ({
    from: each.from,
    to: each.to,
    label: each.failed ? `▲ ${each.failed} of ${each.count}` : String(each.count),
    words: [`${each.from} calls ${each.to}`, words(each)] as [string, string],
    failed: each.failed > 0,
  }));
  return <Picture title="Services" aside={`${programs.length} programs`} caption="Calls between services" boxes={boxes} arrows={arrows} />;
}

interface PictureOf {
  title: string;
  aside: ReactNode;
  /** Of the table. */
  caption: string;
  boxes: Box[];
  arrows: Arrow[];
}

export function Picture({ title, aside, caption, boxes, arrows }: PictureOf) {
  const width = Math.max(...boxes.map(left)) + BOX.width + EDGE_PX;
  const height = Math.max(...boxes.map(top)) + BOX.height + EDGE_PX;
  const byKey = new Map(boxes.map((each) => [each.key, each]));
  return (
    <Panel title={title} aside={<span className="quiet">{aside}</span>}>
      <div className="scroll" tabIndex={0} role="region" aria-label={`${title}, picture`}>
        <svg className="graph" width={width} height={height} viewBox={`0 0 ${width} ${height}`} aria-hidden="true">
          <defs>
            <marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">
              <path d="M0 0 8 4 0 8z" />
            </marker>
          </defs>
          {arrows.map((each) => {
            const from = byKey.get(each.from);
            const to = byKey.get(each.to);
            return from && to && from !== to && <Line key={each.from + each.to} from={from} to={to} arrow={each} />;
          })}
          {boxes.map((each) => (
            <g key={each.key} transform={`translate(${left(each)} ${top(each)})`}>
              <rect {...BOX} rx="6" />
              <text x="12" y="18" className="name">
                {each.name}
              </text>
              <text x="12" y="35">{each.note}</text>
            </g>
          ))}
        </svg>
      </div>
      <table className="hidden">
        <caption>{caption}</caption>
        <tbody>
          {arrows.map((each) => (
            <tr key={each.from + each.to}>
              <th scope="row">{each.words[0]}</th>
              <td>{each.words[1]}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

function Line({ from, to, arrow }: { from: Box; to: Box; arrow: Arrow }) {
  const forward = to.layer > from.layer;
  const shift = forward ? -6 : 6; // an answer's arrow beside the call's
  const x1 = left(from) + (forward ? BOX.width : to.layer === from.layer ? BOX.width / 2 : 0);
  const x2 = left(to) + (forward ? 0 : to.layer === from.layer ? BOX.width / 2 : BOX.width);
  const level = to.layer === from.layer;
  const down = to.place > from.place;
  const y1 = top(from) + (level ? (down ? BOX.height : 0) : BOX.height / 2 + shift);
  const y2 = top(to) + (level ? (down ? 0 : BOX.height) : BOX.height / 2 + shift);
  const middle = (x1 + x2) / 2;
  const path = level ? `M${x1} ${y1} L${x2} ${y2}` : `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
  return (
    <g className={arrow.failed ? "failed" : ""}>
      <path d={path} className="edge" markerEnd="url(#arrow)" />
      <text x={middle} y={(y1 + y2) / 2 + (forward ? -6 : 14)} textAnchor="middle">
        {arrow.label}
      </text>
    </g>
  );
}
