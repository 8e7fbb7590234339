// Who calls whom in a trace, as a picture and for screen readers as a table.
import type { Calls, Graph, Program } from "./spans";
import { Panel } from "./ui";

const BOX = { width: 168, height: 44 };
const GAP = { x: 128, y: 28 };
const EDGE_PX = 16;

const left = (program: Program) => EDGE_PX + program.layer * (BOX.width + GAP.x);
const top = (program: Program) => EDGE_PX + program.place * (BOX.height + GAP.y);
const words = ({ count, failed }: Calls) => (failed ? `${count} calls, ${failed} failed` : count === 1 ? "1 call" : `${count} calls`);

export function ServiceGraph({ graph }: { graph: Graph }) {
  const { programs, calls } = graph;
  const width = Math.max(...programs.map(left)) + BOX.width + EDGE_PX;
  const height = Math.max(...programs.map(top)) + BOX.height + EDGE_PX;
  const byName = new Map(programs.map((each) => [each.name, each]));
  return (
    <Panel title="Services" aside={<span className="quiet">{programs.length} programs</span>}>
      <div className="scroll" tabIndex={0} role="region" aria-label="Services, picture">
        <svg className="graph" width={width} height={height} viewBox={`0 0 ${width} ${height}`} aria-hidden="true">
          <defs>
            <marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">
              <path d="M0 0 8 4 0 8z" />
            </marker>
          </defs>
          {calls.map((each) => {
            const from = byName.get(each.from);
            const to = byName.get(each.to);
            return from && to && from !== to && <Arrow key={each.from + each.to} from={from} to={to} calls={each} />;
          })}
          {programs.map((each) => (
            <Box key={each.name} program={each} own={calls.find((call) => call.from === each.name && call.to === each.name)} />
          ))}
        </svg>
      </div>
      <table className="hidden">
        <caption>Calls between services</caption>
        <tbody>
          {calls.map((each) => (
            <tr key={each.from + each.to}>
              <th scope="row">
                {each.from} calls {each.to}
              </th>
              <td>{words(each)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

function Box({ program, own }: { program: Program; own: Calls | undefined }) {
  const facts = [program.spans === 1 ? "1 span" : `${program.spans} spans`, program.instances > 1 && `${program.instances} processes`, own && `↻ ${own.count}`];
  return (
    <g transform={`translate(${left(program)} ${top(program)})`}>
      <rect {...BOX} rx="6" />
      <text x="12" y="18" className="name">
        {program.name}
      </text>
      <text x="12" y="35">{facts.filter(Boolean).join(" · ")}</text>
    </g>
  );
}

function Arrow({ from, to, calls }: { from: Program; to: Program; calls: Calls }) {
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
    <g className={calls.failed ? "failed" : ""}>
      <path d={path} className="edge" markerEnd="url(#arrow)" />
      <text x={middle} y={(y1 + y2) / 2 + (forward ? -6 : 14)} textAnchor="middle">
        {calls.failed ? `▲ ${calls.failed} of ${calls.count}` : calls.count}
      </text>
    </g>
  );
}
