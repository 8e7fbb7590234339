import { memo, useDeferredValue, useMemo, useState } from "react";
import { inNamespace, type Schemas } from "./api";
import { ServiceGraph } from "./graph";
import { usePolled } from "./live";
import { duration } from "./model";
import { causesOf, graphOf, type Line, lines, type Span } from "./spans";
import { Empty, Panel, Table, Told } from "./ui";

const AGAIN_MS = 3000;
const ROW_PX = 24;
const BLOCK_ROWS = 10; // rows are drawn in blocks, one more above and below what is seen, so that scrolling shows no gap

export function Traces({ namespace }: { namespace: string }) {
  const [name, setName] = useState("");
  const [service, setService] = useState("");
  const [slower, setSlower] = useState("");
  const [errors, setErrors] = useState(false);
  const wanted = { name, service, min_duration_ms: String(Number(slower) || 0), errors_only: String(errors) };
  const search = { ...wanted, ...inNamespace(namespace), limit: "100" };
  const query = useDeferredValue(`?${new URLSearchParams(search)}`);
  const traces = usePolled<Schemas["TraceList"]>(`/traces${query}`, AGAIN_MS);
  return (
    <>
      <div className="title">
        <h1>Traces</h1>
        <input
          type="search"
          aria-label="Part of the first span's name"
          placeholder="Part of the name"
          value={name}
          onChange={(event) => setName(event.target.value)}
        />
        <input
          type="search"
          aria-label="Program of the first span"
          placeholder="Program"
          value={service}
          onChange={(event) => setService(event.target.value)}
        />
        <input
          type="search"
          inputMode="decimal"
          aria-label="Slower than, in milliseconds"
          placeholder="Slower than … ms"
          value={slower}
          onChange={(event) => setSlower(event.target.value)}
        />
        <label>
          <input type="checkbox" checked={errors} onChange={(event) => setErrors(event.target.checked)} /> only failed
        </label>
      </div>
      <Told query={traces} what="the traces">
        {({ items }) =>
          items.length === 0 ? (
            <Empty>No trace matches. Traces come a few seconds after a request.</Empty>
          ) : (
            <Panel title="Newest first">
              <Table caption="Traces" head={["Trace", "Program", "#Spans", "#Duration", "Time"]}>
                {items.map((each) => (
                  <tr key={each.trace_id}>
                    <th scope="row">
                      <a href={`#/traces/${each.trace_id}`}>{each.name}</a>
                      {each.errors > 0 && <span className="badge bad">▲ {each.errors} failed</span>}
                    </th>
                    <td>{each.service}</td>
                    <td className="number">{each.spans}</td>
                    <td className="number">{duration(each.duration_ns)}</td>
                    <td className="nowrap">{new Date(each.start_ns / 1e6).toLocaleTimeString()}</td>
                  </tr>
                ))}
              </Table>
            </Panel>
          )
        }
      </Told>
    </>
  );
}

export function TracePage({ id }: { id: string }) {
  const trace = usePolled<Schemas["Trace"]>(`/traces/${id}`, AGAIN_MS); // each program sends its spans when it has some
  return (
    <Told query={trace} what="the trace">
      {(data) => <OneTrace trace={data} />}
    </Told>
  );
}

function OneTrace({ trace }: { trace: Schemas["Trace"] }) {
  const [chosenId, setChosen] = useState("");
  const { rows, graph } = useMemo(() => {
    const causes = causesOf(trace.spans);
    return { rows: lines(trace.spans, causes), graph: graphOf(trace.spans, causes) };
  }, [trace]);
  const chosen = rows.find((each) => each.span.span_id === chosenId)?.span;
  const begin = Math.min(...rows.map((each) => each.span.start_ns));
  const end = Math.max(...rows.map((each) => each.span.end_ns), begin + 1);
  const services = [...new Set(rows.map((each) => each.span.service))].sort();
  return (
    <>
      <div className="title">
        <p className="quiet">
          <a href="#/traces">Traces</a> / {trace.trace_id}
        </p>
        <h1>{(rows[0]?.span.name ?? trace.trace_id).split(/(?<=\/)/).map((part, at) => [at > 0 && <wbr key={at} />, part])}</h1>
        <p>
          {rows.length === 1 ? "1 span" : `${rows.length} spans`} in {duration(end - begin)}: {services.join(", ")}
          {trace.truncated && " (there are more than are shown)"}
        </p>
      </div>
      {graph.programs.length > 1 && <ServiceGraph graph={graph} />}
      <Waterfall rows={rows} begin={begin} end={end} chosen={chosen} choose={setChosen} />
      {chosen && (
        <Panel title={chosen.name} aside={<span className="quiet">{chosen.service}</span>}>
          {chosen.error && <p className="failure">{chosen.error}</p>}
          <Table caption="Attributes" head={["Attribute", "Value"]}>
            {Object.entries(chosen.attributes ?? {}).map(([key, value]) => (
              <tr key={key}>
                <th scope="row">{key}</th>
                <td className="value">{String(value)}</td>
              </tr>
            ))}
          </Table>
        </Panel>
      )}
    </>
  );
}

interface WaterfallOf {
  rows: Line[];
  begin: number;
  end: number;
  chosen: Span | undefined;
  choose: (spanId: string) => void;
}

function Waterfall({ rows, begin, end, chosen, choose }: WaterfallOf) {
  const [first, setFirst] = useState(0); // another block, not another row, draws anew
  const shown = rows.slice(first, first + Math.ceil(window.innerHeight / ROW_PX) + 3 * BLOCK_ROWS);
  const look = (top: number) => setFirst(Math.max(0, Math.floor(top / ROW_PX / BLOCK_ROWS - 1) * BLOCK_ROWS));
  return (
    <Panel title="Waterfall">
      <div className="waterfall" onScroll={(event) => look(event.currentTarget.scrollTop)}>
        <svg className="spacer" width="1" height={rows.length * ROW_PX} aria-hidden="true" />
        {shown.map((line, number) => (
          <Bar
            key={line.span.span_id}
            line={line}
            top={(first + number) * ROW_PX}
            left={((line.span.start_ns - begin) / (end - begin)) * 100}
            width={Math.max(0.3, ((line.span.end_ns - line.span.start_ns) / (end - begin)) * 100)}
            chosen={chosen === line.span}
            choose={choose}
          />
        ))}
      </div>
    </Panel>
  );
}

interface BarOf {
  line: Line;
  top: number;
  left: number;
  width: number;
  chosen: boolean;
  choose: (spanId: string) => void;
}

const Bar = memo(function Bar({ line: { span, depth }, top, left, width, chosen, choose }: BarOf) {
  return (
    <button
      className={`span${span.error ? " failed" : ""}${chosen ? " chosen" : ""}`}
      style={{ top }}
      onClick={() => choose(span.span_id)}
    >
      <span className="name" style={{ paddingLeft: Math.min(depth, 20) * 12 }}>
        {span.error && "▲ "}
        {span.name} <span className="quiet">{span.instance || span.service}</span>
      </span>
      <span className="track">
        <span className="bar" style={{ left: `${left}%`, width: `${width}%` }} />
      </span>
      <span className="number">{duration(span.end_ns - span.start_ns)}</span>
    </button>
  );
});
