import { memo, useDeferredValue, useMemo, useState } from "react";
import { inNamespace, type Schemas } from "./api";
import { shown } from "./chart";
import { usePolled, useResources } from "./live";
import { UseMap } from "./usemap";
import { addressOf, between, hasPods, health, type KindList, lastGapMs, newest, type Resource, waitsOf } from "./model";
import { Badge, Empty, Loading, Panel, Rows, Spark, Table } from "./ui";

const LINES_AGAIN_MS = 60_000; // a step of theirs is two minutes

type Line = Schemas["SeriesLine"];

export function Overview({ namespace }: { namespace: string }) {
  const lists = useResources();
  const lines = useLines(namespace);
  const [wanted, setWanted] = useState("");
  const filter = useDeferredValue(wanted.trim().toLowerCase());
  const tones = useMemo(() => lists?.flatMap((list) => list.items.map((each) => health(each).tone)) ?? [], [lists]);
  const count = (tone: string) => tones.filter((each) => each === tone).length;
  if (!lists) return <Loading what="the resources" />;
  return (
    <>
      <div className="title">
        <h1>Resources</h1>
        <p>
          {tones.length} in all: {count("good")} ready, {count("busy")} changing, {count("bad")} not ready
        </p>
        <input
          type="search"
          aria-label="Filter by name or namespace"
          placeholder="Filter by name or namespace"
          value={wanted}
          onChange={(event) => setWanted(event.target.value)}
        />
      </div>
      {tones.length === 0 && (
        <Empty>
          There is no resource yet. Try <code>kubectl apply -f examples/quickstart.yaml</code>.
        </Empty>
      )}
      {lists
        .filter((list) => list.items.length > 0)
        .map((list) => (
          <OneKind key={list.plural} list={list} filter={filter} lines={lines} />
        ))}
      <UseMap lists={lists} lines={lines} filter={filter} />
    </>
  );
}

/** The last hour of each resource, by its address on this page. */
function useLines(namespace: string): Map<string, Line> {
  const { data } = usePolled<Schemas["SeriesLines"]>(`/resources/series?${new URLSearchParams(inNamespace(namespace))}`, LINES_AGAIN_MS);
  return useMemo(() => new Map(data?.items.map((each) => [`${each.plural}/${each.namespace}/${each.name}`, each])), [data]);
}

/** From the first value to the newest step that may have one: what is silent is drawn as nothing done. */
function known({ values }: Line): number[] {
  const end = values.at(-1) === null ? -1 : values.length;
  return values.slice(values.findIndex((value) => value !== null), end).map((value) => value ?? 0);
}

const OF_PODS = ["#Generation", "#Pods ready", "#Writes paused"];
const OF_OTHERS: Record<string, string[]> = {
  Dataflow: ["#Views", "#Ticks behind", "#Bad rows"],
  Backup: ["#Entry", "#Bytes", "#Took"],
};

/** Unless its list changed nothing of a kind is looked at again. */
const OneKind = memo(function OneKind({ list, filter, lines }: { list: KindList; filter: string; lines: Map<string, Line> }) {
  const shown = list.items.filter((each) => `${each.metadata.namespace}/${each.metadata.name}`.includes(filter));
  return (
    <Panel title={list.kind} half aside={<span className="quiet">{list.items.length}</span>}>
      {shown.length === 0 ? (
        <Empty>No name contains “{filter}”.</Empty>
      ) : (
        <Table
          caption={list.kind}
          even
          rows={shown.length}
          head={["Name", "State", ...(OF_OTHERS[list.kind] ?? OF_PODS), "Last hour", "Waits for"]}
        >
          <Rows items={shown} row={(each) => <Row key={each.metadata.uid} plural={list.plural} resource={each} line={lines.get(addressOf(list.plural, each))} />} />
        </Table>
      )}
    </Panel>
  );
});

const Row = memo(function Row({ plural, resource, line }: { plural: string; resource: Resource; line: Line | undefined }) {
  const { name, namespace } = resource.metadata;
  const waits = waitsOf(resource)[0]?.message ?? "";
  const facts = hasPods(resource) ? ofPods(resource) : resource.kind === "Backup" ? ofBackup(resource) : ofScript(resource);
  return (
    <tr>
      <th scope="row">
        <a href={`#/${addressOf(plural, resource)}`}>{name}</a> <span className="quiet">{namespace}</span>
      </th>
      <td>
        <Badge health={health(resource)} />
      </td>
      {facts.map((each, number) => (
        <td key={number} className="number">
          {each}
        </td>
      ))}
      <td className="nowrap">
        {line && (
          <>
            <Spark values={known(line)} most={line.values.length} /> {shown(newest(line), line.unit)}
          </>
        )}
      </td>
      <td className="quiet waits" title={waits}>
        {waits}
      </td>
    </tr>
  );
});

function ofPods({ status }: Resource): string[] {
  const generations = status?.generations ?? [];
  const sum = (what: "pods" | "podsReady") => generations.reduce((total, each) => total + each[what], 0);
  const next = status?.nextGeneration;
  const gap = lastGapMs(status);
  return [
    `${status?.activeGeneration ?? "–"}${next ? ` → ${next}` : ""}`,
    `${sum("podsReady")}/${sum("pods")}`,
    gap === null ? "–" : `${gap} ms`,
  ];
}

function ofBackup({ status }: Resource): string[] {
  const { index, bytes, startedAt, completedAt } = (status ?? {}) as Partial<Schemas["BackupStatus"]>;
  return [...[index, bytes].map((each) => each?.toLocaleString() ?? "–"), completedAt ? between(startedAt, completedAt) : "–"];
}

function ofScript({ status }: Resource): string[] {
  const { views = [], badRows } = (status ?? {}) as Partial<Schemas["DataflowStatus"]>;
  const lags = (views ?? []).map((each) => each.lag);
  const lag = lags.some((each) => each == null) ? "not built yet" : lags.length ? String(Math.max(...lags.map(Number))) : "–";
  return [String(lags.length), lag, badRows == null ? "–" : badRows.toLocaleString()];
}
