import { memo, useDeferredValue, useState } from "react";
import { useResources } from "./live";
import { health, type KindList, lastGapMs, type Resource, waitsOf } from "./model";
import { Badge, Empty, Loading, Panel, Rows, Table } from "./ui";

export function Overview() {
  const lists = useResources();
  const [wanted, setWanted] = useState("");
  const filter = useDeferredValue(wanted.trim().toLowerCase());
  if (!lists) return <Loading what="the resources" />;
  const all = lists.flatMap((list) => list.items);
  const count = (tone: string) => all.filter((each) => health(each).tone === tone).length;
  return (
    <>
      <div className="title">
        <h1>Resources</h1>
        <p>
          {all.length} in all: {count("good")} ready, {count("busy")} changing, {count("bad")} not ready
        </p>
        <input
          type="search"
          aria-label="Filter by name or namespace"
          placeholder="Filter by name or namespace"
          value={wanted}
          onChange={(event) => setWanted(event.target.value)}
        />
      </div>
      {all.length === 0 && (
        <Empty>
          There is no resource yet. Try <code>kubectl apply -f examples/quickstart.yaml</code>.
        </Empty>
      )}
      {lists
        .filter((list) => list.items.length > 0)
        .map((list) => (
          <OneKind key={list.plural} list={list} filter={filter} />
        ))}
    </>
  );
}

function OneKind({ list, filter }: { list: KindList; filter: string }) {
  const shown = list.items.filter((each) => `${each.metadata.namespace}/${each.metadata.name}`.includes(filter));
  return (
    <Panel title={list.kind} aside={<span className="quiet">{list.items.length}</span>}>
      {shown.length === 0 ? (
        <Empty>No name contains “{filter}”.</Empty>
      ) : (
        <Table
          caption={list.kind}
          even
          rows={shown.length}
          head={["Name", "State", "#Generation", "#Pods ready", "#Writes paused", "Waits for"]}
        >
          <Rows items={shown} row={(each) => <Row key={each.metadata.uid} plural={list.plural} resource={each} />} />
        </Table>
      )}
    </Panel>
  );
}

const Row = memo(function Row({ plural, resource }: { plural: string; resource: Resource }) {
  const { name, namespace } = resource.metadata;
  const generations = resource.status?.generations ?? [];
  const pods = generations.reduce((sum, each) => sum + each.pods, 0);
  const ready = generations.reduce((sum, each) => sum + each.podsReady, 0);
  const gap = lastGapMs(resource);
  const waits = waitsOf(resource)[0]?.message ?? "";
  const next = resource.status?.nextGeneration;
  return (
    <tr>
      <th scope="row">
        <a href={`#/${plural}/${namespace}/${name}`}>{name}</a> <span className="quiet">{namespace}</span>
      </th>
      <td>
        <Badge health={health(resource)} />
      </td>
      <td className="number">
        {resource.status?.activeGeneration ?? "–"}
        {next ? ` → ${next}` : ""}
      </td>
      <td className="number">
        {ready}/{pods}
      </td>
      <td className="number">{gap === null ? "–" : `${gap} ms`}</td>
      <td className="quiet waits" title={waits}>
        {waits}
      </td>
    </tr>
  );
});
