// Open flows of an immortal: found by the attributes that its application set, and the history of one.
import { type FormEvent, useState } from "react";
import type { Schemas } from "./api";
import { usePolled } from "./live";
import { Dialog, Empty, Panel, Table, Told } from "./ui";

const AGAIN_MS = 2000; // an immortal has no stream
const STEPS_AT_ONCE = 200;
const WORD = /[^\s,="]+="[^"]*"|[^\s,]+/g; // a value in quotes may have spaces
const DATE_MS_MAX = 8.64e15; // JavaScript's last moment

type Flow = Schemas["OpenFlow"];
type Step = Schemas["FlowStep"];

/** Those that the immortal tells of by itself, or, once somebody has searched, those that were found. */
export function Flows({ path, application }: { path: string; application: Schemas["ImmortalApplication"] }) {
  const [typed, setTyped] = useState("");
  const [query, setQuery] = useState("");
  const [shown, setShown] = useState<number | null>(null);
  if (application.flowsOpen === 0 && !query) return null;
  function send(event: FormEvent) {
    event.preventDefault();
    const parameters = new URLSearchParams();
    for (const word of typed.match(WORD) ?? [])
      parameters.append(word.includes("=") ? "attribute" : "method", word.replace(/="(.*)"$/, "=$1"));
    setQuery(parameters.toString());
  }
  return (
    <Panel title="Open flows">
      <form className="line" onSubmit={send}>
        <input
          aria-label="Search attributes or method"
          placeholder='customer=7 city="New York", or a method'
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
        />
        <button className="primary">Find</button>
      </form>
      {query ? (
        <FoundFlows key={query} path={`${path}/flows?${query}`} show={setShown} />
      ) : (
        <FlowTable items={application.flows} found={application.flowsOpen} show={setShown} />
      )}
      {shown !== null && <History path={`${path}/flows/${shown}`} onClose={() => setShown(null)} />}
    </Panel>
  );
}

function FoundFlows({ path, show }: { path: string; show: (number: number) => void }) {
  const query = usePolled<Schemas["FoundFlows"]>(path, AGAIN_MS);
  return (
    <Told query={query} what="the flows">
      {({ items, found }) => <FlowTable items={items} found={found} show={show} />}
    </Told>
  );
}

function FlowTable({ items, found, show }: { items: Flow[]; found: number; show: (number: number) => void }) {
  if (items.length === 0) return <Empty>No open flow was found.</Empty>;
  return (
    <>
      {found > items.length && <p className="empty">The oldest {items.length} of {found.toLocaleString()}.</p>}
      <Table caption="Open flows" head={["Flow", "#Number", "#Steps", "Attributes", "Waits for", "Caller", "Actions"]}>
        {items.map((each) => (
          <tr key={each.number}>
            <th scope="row">{each.method}</th>
            <td className="number">{each.number}</td>
            <td className="number">{each.steps}</td>
            <td>{attributes(each)}</td>
            <td>{each.waitsFor.join(", ") || "–"}</td>
            <td>{each.caller || "from outside"}</td>
            <td>
              <button aria-label={`History of flow ${each.number}`} onClick={() => show(each.number)}>
                History
              </button>
            </td>
          </tr>
        ))}
      </Table>
    </>
  );
}

function attributes({ attributes }: Flow): string {
  const said = Object.entries(attributes ?? {}).map(([name, value]) => `${name}=${value}`);
  return said.join(" ") || "–";
}

function History({ path, onClose }: { path: string; onClose: () => void }) {
  const [from, setFrom] = useState(0);
  const query = usePolled<Schemas["FlowHistory"]>(`${path}?from=${from}`, AGAIN_MS);
  return (
    <Dialog title={`History of flow ${path.split("/").pop()}`} onClose={onClose}>
      <Told query={query} what="the history">
        {(flow) => (
          <>
            <p className="result">
              {flow.method}({given(flow.arguments)})
            </p>
            <p className="quiet">
              begun with version {flow.version}; {attributes(flow)}
            </p>
            {flow.history.length === 0 ? (
              <Empty>It has asked for nothing yet.</Empty>
            ) : (
              <Table caption="Steps" head={["#Step", "What", "State", "Result"]}>
                {flow.history.map((each) => (
                  <tr key={each.step}>
                    <td className="number">{each.step}</td>
                    <th scope="row">{[each.kind, each.target, each.name].filter(Boolean).join(" ")}</th>
                    <td className={each.state === "failed" ? "bad" : undefined}>{state(each)}</td>
                    <td className="value">{each.state === "open" ? "–" : (each.error ?? JSON.stringify(each.result ?? null))}</td>
                  </tr>
                ))}
              </Table>
            )}
            <div className="actions">
              <button onClick={onClose}>Close</button>
              {from > 0 && <button onClick={() => setFrom(Math.max(0, from - STEPS_AT_ONCE))}>Earlier steps</button>}
              {from + flow.history.length < flow.steps && <button onClick={() => setFrom(from + flow.history.length)}>Later steps</button>}
            </div>
          </>
        )}
      </Told>
    </Dialog>
  );
}

function given(values: Record<string, unknown>): string {
  return Object.entries(values)
    .map(([name, value]) => `${name}=${JSON.stringify(value)}`)
    .join(", ");
}

function state({ state, attempts, due }: Step): string {
  const attempt = attempts != null && attempts > 1 ? `, attempt ${attempts}` : "";
  const until = state === "open" && due != null ? `, due ${due <= DATE_MS_MAX ? new Date(due).toISOString() : "never"}` : "";
  return `${state}${attempt}${until}`;
}
