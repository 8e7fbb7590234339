// A Coordinator: where its immortal is in its log, whom it talks to, what it waits for, and calls and queries of it.
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { ask, get, type Schemas } from "./api";
import { Flows } from "./flows";
import { usePolled } from "./live";
import { Empty, Facts, Failure, Loading, Panel, Spark, Table, Told } from "./ui";

const AGAIN_MS = 1000; // an immortal has no stream
const SAMPLES_MAX = 60; // a minute

type Info = Schemas["ImmortalInfo"];
type Handler = Schemas["Handler"];

export function Immortal({ path }: { path: string }) {
  const info = usePolled<Info>(`${path}/immortal`, AGAIN_MS);
  return (
    <Told query={info} what="the immortal">
      {(data) => <OneImmortal path={path} info={data} at={info.dataUpdatedAt} />}
    </Told>
  );
}

function OneImmortal({ path, info, at }: { path: string; info: Info; at: number }) {
  const { application, coordinators } = info;
  return (
    <>
      <Position info={info} at={at} />
      {application && <Try path={path} handlers={[...application.queries, ...application.methods]} queries={application.queries} />}
      <Panel title="Coordinators" half>
        {coordinators.length === 0 ? (
          <Empty>No coordinator answers.</Empty>
        ) : (
          <Table caption="Coordinators" head={["Pod", "Stage", "#Next record", "#Log file", "#Checkpoint", "#Bytes behind"]}>
            {coordinators.map((each) => (
              <tr key={each.pod}>
                <th scope="row">{each.pod}</th>
                <td>{each.live ? "★ leads" : each.stage}</td>
                <td className="number">{each.nextRecord?.toLocaleString() ?? "–"}</td>
                <td className="number">{each.log ?? "–"}</td>
                <td className="number">{each.checkpoint ?? "–"}</td>
                <td className="number">{each.behindBytes?.toLocaleString() ?? "–"}</td>
              </tr>
            ))}
          </Table>
        )}
      </Panel>
      <Peers info={info} />
      {application && <Flows path={path} application={application} />}
    </>
  );
}

function leader(info: Info) {
  return info.coordinators.find((each) => each.live) ?? info.coordinators[0];
}

function Position({ info, at }: { info: Info; at: number }) {
  const { application } = info;
  const rates = useRates(application?.called, at);
  const rate = rates.at(-1);
  return (
    <Panel title="Immortal" aside={<span className="quiet">{application ? `${application.class} · ${application.life}` : ""}</span>}>
      {!application && <Empty>No application answers: look at “Waits for” and at the log of its container.</Empty>}
      {application && (
        <Facts
          items={[
            ["Record handled", application.seq.toLocaleString()],
            ["Bytes to replay", (leader(info)?.behindBytes ?? 0).toLocaleString()],
            [
              "Calls per second",
              <>
                {rate === undefined ? "–" : rate.toFixed(rate < 10 ? 1 : 0)} <Spark values={rates} most={SAMPLES_MAX} />
              </>,
            ],
            ["Calls since it leads", application.called.toLocaleString()],
            ["Handlers failed", application.failed.toLocaleString()],
            ["Open flows", application.flowsOpen.toLocaleString()],
          ]}
        />
      )}
    </Panel>
  );
}

/** Per second, from two readings each of a count that begins anew with another process. */
function useRates(count: number | undefined, at: number): number[] {
  const last = useRef<{ count: number; at: number } | null>(null);
  const [rates, setRates] = useState<number[]>([]);
  useEffect(() => {
    const before = last.current;
    last.current = count === undefined ? null : { count, at };
    if (!before || count === undefined || at <= before.at || count < before.count) return;
    const rate = ((count - before.count) * 1000) / (at - before.at);
    setRates((all) => [...all, rate].slice(-SAMPLES_MAX));
  }, [count, at]);
  return rates;
}

function Peers({ info }: { info: Info }) {
  const peers = leader(info)?.peers ?? [];
  return (
    <Panel title="Peers" half>
      {peers.length === 0 ? (
        <Empty>It has met no other immortal yet.</Empty>
      ) : (
        <Table caption="Peers" head={["Immortal", "Link"]}>
          {peers.map((each) => (
            <tr key={each.name}>
              <th scope="row">{each.name}</th>
              <td className={each.link === "connected" ? "good" : "bad"}>
                {each.link === "connected" ? "● connected" : `▲ ${each.link}`}
              </td>
            </tr>
          ))}
        </Table>
      )}
    </Panel>
  );
}

function Try({ path, handlers, queries }: { path: string; handlers: Handler[]; queries: Handler[] }) {
  const [name, setName] = useState(handlers[0]?.name ?? "");
  const [given, setGiven] = useState<Record<string, string>>({});
  const [key, setKey] = useState(() => crypto.randomUUID());
  const client = useQueryClient();
  const chosen = handlers.find((each) => each.name === name);
  const isQuery = queries.some((each) => each.name === name);
  const run = useMutation({
    mutationFn: (handler: Handler) => {
      const values = handler.parameters.filter((each) => each.required || given[each.name]);
      const plain = Object.fromEntries(values.map((each) => [each.name, given[each.name] ?? ""]));
      if (isQuery) return get<{ result: unknown }>(`${path}/query/${handler.name}?${new URLSearchParams(plain)}`);
      const args = Object.fromEntries(Object.entries(plain).map(([each, text]) => [each, valueOf(text, handler, each)]));
      return ask<{ result: unknown }>("POST", `${path}/call/${handler.name}`, args, { "Idempotency-Key": key });
    },
    onSuccess: () => {
      setKey(crypto.randomUUID()); // a call whose end is not known is sent again under its key, and happens once
      void client.invalidateQueries({ queryKey: [`${path}/immortal`] });
    },
  });
  if (!chosen) return null;
  return (
    <Panel title="Call and query">
      <form
        className="line"
        onSubmit={(event) => {
          event.preventDefault();
          run.mutate(chosen);
        }}
      >
        <select
          aria-label="Method or query"
          value={name}
          onChange={(event) => {
            setName(event.target.value);
            setKey(crypto.randomUUID());
            run.reset();
          }}
        >
          <optgroup label="Queries">{options(queries)}</optgroup>
          <optgroup label="Methods">{options(handlers.filter((each) => !queries.includes(each)))}</optgroup>
        </select>
        {chosen.parameters.map((each) => (
          <input
            key={each.name}
            aria-label={each.name}
            placeholder={`${each.name}: ${String(each.schema["type"] ?? "JSON")}`}
            required={each.required && each.schema["type"] !== "string"}
            value={given[each.name] ?? ""}
            onChange={(event) => {
              setGiven({ ...given, [each.name]: event.target.value });
              setKey(crypto.randomUUID());
            }}
          />
        ))}
        <button className="primary" disabled={run.isPending}>
          {isQuery ? "Query" : "Call"}
        </button>
        <span className="quiet wide">{chosen.text}</span>
        {run.error && <Failure error={run.error} />}
        {run.isPending && <Loading what="the answer" />}
        {run.data && (
          <output className="result" role="status">
            {JSON.stringify(run.data.result, null, 1)}
          </output>
        )}
      </form>
    </Panel>
  );
}

function options(handlers: Handler[]) {
  return handlers.map((each) => <option key={each.name}>{each.name}</option>);
}

/** Text stays text where the parameter is one; all else is JSON, if it can be read as such. */
function valueOf(text: string, handler: Handler, name: string): unknown {
  const type = handler.parameters.find((each) => each.name === name)?.schema["type"];
  if (type === "string") return text;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return text; // the application says what is wrong with it
  }
}
