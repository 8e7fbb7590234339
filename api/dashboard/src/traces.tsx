import { useQuery } from "@tanstack/react-query";
import { useDeferredValue, useMemo, useState } from "react";
import { get, type Schemas } from "./api";
import { ServiceGraph } from "./graph";
import { duration } from "./model";
import { causesOf, graphOf, lines } from "./spans";
import { Empty, Failure, Loading, Panel, Table } from "./ui";

const AGAIN_MS = 3000;
const ROW_PX = 24;
const ROWS_MARGIN = 10; // rows drawn above and below what is seen, so that scrolling shows no gap

export function Traces() {
  const [name, setName] = useState("");
  const [service, setService] = useState("");
  const [slower, setSlower] = useState("");
  const [errors, setErrors] = useState(false);
  const search = { name, service, min_duration_ms: String(Number(slower) || 0), errors_only: String(errors), limit: "100" };
  const query = useDeferredValue(`?${new URLSearchParams(search)}`);
  const traces = useQuery({
    queryKey: ["traces", query],
    queryFn: ({ signal }) => get<Schemas["TraceList"]>(`/traces${query}`, signal),
    refetchInterval: AGAIN_MS,
    placeholderData: (before) => before,
  });
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
      {traces.error && <Failure error={traces.error} again={() => void traces.refetch()} />}
      {traces.isPending && <Loading what="the traces" />}
      {traces.data?.items.length === 0 && <Empty>No trace matches. Traces come a few seconds after a request.</Empty>}
      {traces.data && traces.data.items.length > 0 && (
        <Panel title="Newest first">
          <Table caption="Traces" head={["Trace", "Program", "#Spans", "#Duration", "Time"]}>
            {traces.data.items.map((each) => (
              <tr key={each.trace_id}>
                <th scope="row">
                  <a href={`#/traces/${each.trace_id}`}>{each.name}</a>
                  {each.errors > 0 && <span className="badge bad">▲ {each.errors} failed</span>}
                </th>
                <td>{each.service}</td>
                <td className="number">{each.spans}</td>
                <td className="number">{duration(each.duration_ns)}</td>
                <td>{new Date(each.start_ns / 1e6).toLocaleTimeString()}</td>
              </tr>
            ))}
          </Table>
        </Panel>
      )}
    </>
  );
}

export function TracePage({ id }: { id: string }) {
  const trace = useQuery({
    queryKey: ["trace", id],
    queryFn: ({ signal }) => get<Schemas["Trace"]>(`/traces/${id}`, signal),
    refetchInterval: AGAIN_MS, // each program sends its spans when it has some
  });
  const [chosenId, setChosen] = useState("");
  const [top, setTop] = useState(0);
  const { rows, graph } = useMemo(() => {
    const spans = trace.data?.spans ?? [];
    const causes = causesOf(spans);
    return { rows: lines(spans, causes), graph: graphOf(spans, causes) };
  }, [trace.data]);
  const chosen = rows.find((each) => each.span.span_id === chosenId)?.span;
  if (trace.isPending) return <Loading what="the trace" />;
  if (trace.error) return <Failure error={trace.error} again={() => void trace.refetch()} />;
  const begin = Math.min(...rows.map((each) => each.span.start_ns));
  const end = Math.max(...rows.map((each) => each.span.end_ns), begin + 1);
  const first = Math.max(0, Math.floor(top / ROW_PX) - ROWS_MARGIN);
  const shown = rows.slice(first, first + Math.ceil(window.innerHeight / ROW_PX) + 2 * ROWS_MARGIN);
  const services = [...new Set(rows.map((each) => each.span.service))].sort();
  return (
    <>
      <div className="title">
        <p className="quiet">
          <a href="#/traces">Traces</a> / {id}
        </p>
        <h1>{rows[0]?.span.name ?? id}</h1>
        <p>
          {rows.length} spans in {duration(end - begin)}: {services.join(", ")}
          {trace.data.truncated && " (there are more than are shown)"}
        </p>
      </div>
      {graph.programs.length > 1 && <ServiceGraph graph={graph} />}
      <Panel title="Waterfall">
        <div className="waterfall" onScroll={(event) => setTop(event.currentTarget.scrollTop)}>
          <svg className="spacer" width="1" height={rows.length * ROW_PX} aria-hidden="true" />
          {shown.map(({ span, depth }, number) => (
            <button
              key={span.span_id}
              className={`span${span.error ? " failed" : ""}${chosen === span ? " chosen" : ""}`}
              style={{ top: (first + number) * ROW_PX }}
              onClick={() => setChosen(span.span_id)}
            >
              <span className="name" style={{ paddingLeft: Math.min(depth, 20) * 12 }}>
                {span.error && "▲ "}
                {span.name} <span className="quiet">{span.instance || span.service}</span>
              </span>
              <span className="track">
                <span
                  className="bar"
                  style={{
                    left: `${((span.start_ns - begin) / (end - begin)) * 100}%`,
                    width: `${Math.max(0.3, ((span.end_ns - span.start_ns) / (end - begin)) * 100)}%`,
                  }}
                />
              </span>
              <span className="number">{duration(span.end_ns - span.start_ns)}</span>
            </button>
          ))}
        </div>
      </Panel>
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
