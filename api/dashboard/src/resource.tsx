import { useState } from "react";
import { post } from "./api";
import { Change, ImageChange } from "./changes";
import { Raft } from "./data";
import { Dataflow } from "./dataflow";
import { Events } from "./events";
import { Immortal } from "./immortal";
import { Lanes } from "./lanes";
import { Waltz } from "./log";
import { useNow, useResources } from "./live";
import { Series } from "./series";
import { Swim } from "./swim";
import {
  type Action,
  actionsOf,
  ago,
  between,
  hasPods,
  health,
  lasting,
  pathOf,
  type Resource,
  waitsOf,
} from "./model";
import { Views } from "./views";
import { Badge, Confirm, Empty, Loading, Panel, Table } from "./ui";

export function ResourcePage({ plural, namespace, name }: { plural: string; namespace: string; name: string }) {
  const lists = useResources();
  if (!lists) return <Loading what={name} />;
  const list = lists.find((each) => each.plural === plural);
  const found = list?.items.find((each) => each.metadata.namespace === namespace && each.metadata.name === name);
  if (!found)
    return (
      <Empty>
        There is no {plural}/{name} in namespace {namespace}. <a href="#/">All resources</a>
      </Empty>
    );
  const path = pathOf(plural, found);
  const ofCluster = ({ metadata, spec }: Resource) =>
    metadata.namespace === namespace && (spec["computeClusterRef"] as { name: string }).name === name;
  const dataflows = () => lists.find((each) => each.plural === "dataflows")?.items.filter(ofCluster);
  return (
    <>
      <div className="title">
        <p className="quiet">
          <a href="#/">Resources</a> / {found.kind} / {namespace}
        </p>
        <h1>
          {name} <Badge health={health(found)} />
        </h1>
        <Actions key={found.metadata.uid} path={path} resource={found} />
      </div>
      <Waits resource={found} />
      <Gates resource={found} />
      {hasPods(found) && <Lanes path={path} resource={found} />}
      {hasPods(found) && <Series path={path} resource={found} />}
      {plural === "raftclusters" && <Raft path={path} resource={found} />}
      {plural === "swimgroups" && <Swim path={path} resource={found} />}
      {plural === "coordinators" && <Immortal path={path} />}
      {plural === "computeclusters" && <Views path={path} dataflows={dataflows()} />}
      {plural === "dataflows" && <Dataflow resource={found} />}
      {plural === "waltzclusters" && <Waltz path={path} />}
      {hasPods(found) && <History path={path} resource={found} />}
      <Conditions resource={found} />
      {hasPods(found) && <Events path={path} />}
      {plural !== "dataflows" && (
        <Panel title="Spec" half>
          <pre tabIndex={0}>{JSON.stringify(found.spec, null, 2)}</pre>
        </Panel>
      )}
    </>
  );
}

function Actions({ path, resource }: { path: string; resource: Resource }) {
  const [chosen, setChosen] = useState<Action | null>(null);
  return (
    <div className="actions" role="group" aria-label="Actions">
      {actionsOf(resource).map((action) => (
        <button key={action.name} className={action.danger ? "danger" : ""} onClick={() => setChosen(action)}>
          {action.label}
        </button>
      ))}
      {chosen?.name === "image" && <ImageChange path={path} resource={resource} onClose={() => setChosen(null)} />}
      {chosen?.name === "undo" && (
        <Change
          label="Undo"
          title={`Undo ${resource.metadata.name}?`}
          path={path + chosen.path}
          body={{}}
          resource={resource}
          onClose={() => setChosen(null)}
        />
      )}
      {chosen && chosen.name !== "undo" && chosen.name !== "image" && (
        <Confirm
          label={chosen.label}
          what={resource.metadata.name}
          danger={chosen.danger}
          act={() => post(path + chosen.path)}
          onClose={() => setChosen(null)}
        >
          <p>{chosen.effect(resource)}</p>
        </Confirm>
      )}
    </div>
  );
}

function Waits({ resource }: { resource: Resource }) {
  const now = useNow();
  const found = waitsOf(resource);
  if (found.length === 0) return null;
  return (
    <Panel title="Waits for">
      <ul className="plain">
        {found.map((each) => (
          <li key={each.reason + each.message}>
            <strong>{each.reason}</strong> {each.message}{" "}
            <span className="quiet">
              for {lasting(each.since, now)}
              {each.pods.length > 0 && ` · ${each.pods.join(", ")}`}
            </span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function Gates({ resource }: { resource: Resource }) {
  const now = useNow();
  const gates = resource.status?.rollout?.gates ?? [];
  if (gates.length === 0) return null;
  return (
    <Panel title="Gates" half>
      <Table caption="Gates" head={["Gate", "Stands", "Found", "In words", "#For", "Asked"]}>
        {gates.map((each) => (
          <tr key={each.name}>
            <th scope="row">{each.name}</th>
            <td>{each.verdict}</td>
            <td>{each.value ?? "–"}</td>
            <td className="quiet">{each.message}</td>
            <td className="number">{lasting(each.since, now)}</td>
            <td className="nowrap">{ago(each.at, now)}</td>
          </tr>
        ))}
      </Table>
    </Panel>
  );
}

function History({ path, resource }: { path: string; resource: Resource }) {
  const now = useNow();
  const [back, setBack] = useState<number | null>(null);
  const mayUndo = actionsOf(resource).some((each) => each.name === "image");
  const failed = resource.status?.["failed"] != null;
  const attempts = resource.status?.history ?? [];
  const longest = Math.max(1, ...attempts.map((each) => each.writeGapMs ?? 0));
  return (
    <Panel title="History" half>
      {attempts.length === 0 ? (
        <Empty>No generation has been promoted yet.</Empty>
      ) : (
        <Table caption="History" head={["Generation", "Result", "#Writes paused", "#Took", "Ended", "Image", "Reason", "Back"]}>
          {attempts.map((each) => (
            <tr key={`${each.generation}${each.finishedAt}`}>
              <th scope="row">{each.generation}</th>
              <td>{each.result}</td>
              <td className="number gap">
                {each.writeGapMs != null && <i style={{ width: `${(each.writeGapMs / longest) * 50}%` }} />}
                {each.writeGapMs == null ? "–" : `${each.writeGapMs} ms`}
              </td>
              <td className="number">{between(each.startedAt, each.finishedAt)}</td>
              <td className="nowrap">{ago(each.finishedAt, now)}</td>
              <td>{each.image}</td>
              <td className="quiet" title={each.message ?? ""}>
                {each.reason ?? ""}
              </td>
              <td>
                {mayUndo && each.result === "Promoted" && (failed || each.generation !== resource.status?.activeGeneration) && (
                  <button className="nowrap" onClick={() => setBack(each.generation)}>Back to {each.generation}</button>
                )}
              </td>
            </tr>
          ))}
        </Table>
      )}
      {back !== null && (
        <Change
          label="Go back"
          title={`Go back to generation ${back} of ${resource.metadata.name}?`}
          path={`${path}/rollout/undo`}
          body={{ generation: back }}
          resource={resource}
          onClose={() => setBack(null)}
        />
      )}
    </Panel>
  );
}

function Conditions({ resource }: { resource: Resource }) {
  const now = useNow();
  return (
    <Panel title="Conditions" half>
      <Table caption="Conditions" head={["Condition", "Status", "Reason", "Message", "Since"]}>
        {(resource.status?.conditions ?? []).map((each) => (
          <tr key={each.type}>
            <th scope="row">{each.type}</th>
            <td>{each.status}</td>
            <td>{each.reason}</td>
            <td className="quiet">{each.message}</td>
            <td className="nowrap">{ago(each.lastTransitionTime, now)}</td>
          </tr>
        ))}
      </Table>
    </Panel>
  );
}
