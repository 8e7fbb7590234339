import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { post } from "./api";
import { Raft, Swim } from "./data";
import { Waltz } from "./log";
import { useNow, useResources } from "./live";
import {
  type Action,
  actionsOf,
  ago,
  blockers,
  type Generation,
  health,
  pathOf,
  type Resource,
  STAGES,
} from "./model";
import { Badge, Dialog, Empty, Failure, Loading, Panel, Table } from "./ui";

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
      <Lanes resource={found} />
      <Blockers resource={found} />
      {plural === "raftclusters" && <Raft path={path} resource={found} />}
      {plural === "swimgroups" && <Swim path={path} />}
      {plural === "waltzclusters" && <Waltz path={path} />}
      <History resource={found} />
      <Conditions resource={found} />
      <Panel title="Spec">
        <pre tabIndex={0}>{JSON.stringify(found.spec, null, 2)}</pre>
      </Panel>
    </>
  );
}

function Actions({ path, resource }: { path: string; resource: Resource }) {
  const [chosen, setChosen] = useState<Action | null>(null);
  const act = useMutation({
    mutationFn: (action: Action) => post(path + action.path),
    onSuccess: () => setChosen(null),
  });
  const choose = (action: Action) => {
    act.reset();
    setChosen(action);
  };
  return (
    <div className="actions" role="group" aria-label="Actions">
      {actionsOf(resource).map((action) => (
        <button key={action.name} className={action.danger ? "danger" : ""} onClick={() => choose(action)}>
          {action.label}
        </button>
      ))}
      {chosen && (
        <Dialog title={`${chosen.label} ${resource.metadata.name}?`} onClose={() => setChosen(null)}>
          <p>{chosen.effect(resource)}</p>
          {act.error && <Failure error={act.error} />}
          <div className="actions">
            <button onClick={() => setChosen(null)}>Cancel</button>
            <button
              className={chosen.danger ? "danger primary" : "primary"}
              disabled={act.isPending}
              onClick={() => act.mutate(chosen)}
            >
              {chosen.label}
            </button>
          </div>
        </Dialog>
      )}
    </div>
  );
}

function Lanes({ resource }: { resource: Resource }) {
  const generations = [...(resource.status?.generations ?? [])].sort((a, b) => a.number - b.number);
  const rollout = resource.status?.rollout;
  return (
    <Panel title="Generations" aside={<span className="quiet">{rollout?.message ?? ""}</span>}>
      {generations.length === 0 ? (
        <Empty>No generation runs.</Empty>
      ) : (
        <ol className="lanes">
          {generations.map((each) => (
            <Lane key={each.number} generation={each} />
          ))}
        </ol>
      )}
    </Panel>
  );
}

const ROLE_WORDS = { Active: "serves", Next: "is next", Retiring: "is fenced, retires" } as const;

function Lane({ generation }: { generation: Generation }) {
  const at = STAGES.findIndex((stage) => stage === generation.stage);
  const target = generation.target ?? 0;
  const lag = Math.max(0, target - (generation.progress ?? 0));
  return (
    <li className={`lane ${generation.role.toLowerCase()}`}>
      <div className="who">
        <strong>Generation {generation.number}</strong> <span className="quiet">{ROLE_WORDS[generation.role]}</span>
        <span className="pods" aria-label={`${generation.podsReady} of ${generation.pods} pods are ready`}>
          {Array.from({ length: Math.min(generation.pods, 24) }, (_, number) => (
            <i key={number} className={number < generation.podsReady ? "ready" : ""} />
          ))}
          <span className="quiet">
            {generation.podsReady}/{generation.pods} pods
          </span>
        </span>
      </div>
      <ol className="stages" aria-label={`Stage: ${generation.stage ?? "none yet"}`}>
        {STAGES.map((stage, number) => (
          <li key={stage} className={number < at ? "past" : number === at ? "now" : ""} aria-current={number === at}>
            {stage}
          </li>
        ))}
      </ol>
      <div className="quiet">
        {generation.role === "Next" && target > 0 && (
          <>
            <progress max={target} value={generation.progress ?? 0} aria-label="Catching up" /> {lag} behind ·{" "}
          </>
        )}
        {generation.image}
      </div>
    </li>
  );
}

function Blockers({ resource }: { resource: Resource }) {
  const now = useNow();
  const found = blockers(resource);
  if (found.length === 0) return null;
  return (
    <Panel title="Waits for">
      <ul className="plain">
        {found.map((each) => (
          <li key={`${each.reason}${each.pod}`}>
            <strong>{each.reason}</strong> {each.message} <span className="quiet">since {ago(each.since, now)}</span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function History({ resource }: { resource: Resource }) {
  const now = useNow();
  const attempts = [...(resource.status?.history ?? [])].reverse();
  return (
    <Panel title="History">
      {attempts.length === 0 ? (
        <Empty>No generation has been promoted yet.</Empty>
      ) : (
        <Table caption="History" head={["Generation", "Result", "#Writes paused", "Image", "Ended", "Reason"]}>
          {attempts.map((each) => (
            <tr key={`${each.generation}${each.finishedAt}`}>
              <th scope="row">{each.generation}</th>
              <td>{each.result}</td>
              <td className="number">{each.writeGapMs == null ? "–" : `${each.writeGapMs} ms`}</td>
              <td>{each.image}</td>
              <td>{ago(each.finishedAt, now)}</td>
              <td className="quiet">{each.reason ?? ""}</td>
            </tr>
          ))}
        </Table>
      )}
    </Panel>
  );
}

function Conditions({ resource }: { resource: Resource }) {
  const now = useNow();
  return (
    <Panel title="Conditions">
      <Table caption="Conditions" head={["Condition", "Status", "Reason", "Message", "Since"]}>
        {(resource.status?.conditions ?? []).map((each) => (
          <tr key={each.type}>
            <th scope="row">{each.type}</th>
            <td>{each.status}</td>
            <td>{each.reason}</td>
            <td className="quiet">{each.message}</td>
            <td>{ago(each.lastTransitionTime, now)}</td>
          </tr>
        ))}
      </Table>
    </Panel>
  );
}
