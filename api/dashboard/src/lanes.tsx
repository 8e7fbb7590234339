// The pods of a resource: a lane for each generation, in it a track for each pod, on which it goes through the stages.
import type { ReactNode } from "react";
import type { Schemas } from "./api";
import { useStream } from "./live";
import { type Generation, type Resource, STAGES, waitsOf } from "./model";
import { Empty, Failure, Panel } from "./ui";

const PODS_SHOWN_MAX = 40; // per lane; beyond that a list helps nobody

type Pod = Schemas["Pod"];

export function Lanes({ path, resource }: { path: string; resource: Resource }) {
  const { data, state, problem } = useStream<Schemas["PodList"]>(`${path}/pods?watch=true`, "pods");
  const known = resource.status?.generations ?? [];
  const pods = data?.items ?? [];
  const numbers = new Set([...known, ...pods].map((each) => ("number" in each ? each.number : each.generation)));
  const staged = [...numbers].filter((each) => each != null).sort((a, b) => a - b);
  const standing = pods.filter((each) => each.generation == null);
  const told = new Set(waitsOf(resource).map((each) => each.message));
  const message = resource.status?.rollout?.message;
  return (
    <Panel title="Generations" live={state} aside={message && <span className="quiet">{message}</span>}>
      {problem && <Failure error={problem} />}
      {staged.length === 0 && <Empty>{state === "connecting" ? "Looking for pods …" : "No generation has pods."}</Empty>}
      <ol className="lanes">
        {staged.map((number) => (
          <Lane
            key={number}
            number={number}
            generation={known.find((each) => each.number === number)}
            pods={data && pods.filter((each) => each.generation === number)}
            told={told}
          />
        ))}
        {standing.length > 0 && (
          <li className="lane">
            <div className="who">
              <strong>Of all generations</strong>
              <span className="quiet">these serve one generation after the other and have no stages</span>
            </div>
            <ul className="plain">
              {standing.map((pod) => (
                <li key={pod.name} className="pod">
                  <Name pod={pod} />
                  <span />
                  <Facts pod={pod} />
                </li>
              ))}
            </ul>
          </li>
        )}
      </ol>
    </Panel>
  );
}

const ROLE_WORDS = { Active: "serves", Next: "is next", Standby: "follows, can take over again", Retiring: "is fenced, retires" } as const;

interface LaneOf {
  number: number;
  generation: Generation | undefined;
  pods: Pod[] | undefined;
  /** What the page says already of the whole resource. */
  told: Set<string>;
}

function Lane({ number, generation, pods, told }: LaneOf) {
  const role = generation?.role ?? "Retiring";
  const shown = pods?.slice(0, PODS_SHOWN_MAX) ?? [];
  const missing = generation && pods ? generation.pods - pods.length : 0;
  return (
    <li className={`lane ${role.toLowerCase()}`}>
      <div className="who">
        <strong>Generation {number}</strong>
        <span className="role">{ROLE_WORDS[role]}</span>
        {generation && (
          <span className="quiet">
            {generation.podsReady} of {generation.pods} pods ready
          </span>
        )}
        <span className="quiet image">{generation?.image}</span>
      </div>
      <ul className="plain">
        {pods === undefined && generation && (
          <li className="pod">
            <span className="name quiet">the last of its pods</span>
            <Track stage={generation.stage ?? null} />
            <span />
          </li>
        )}
        {shown.map((pod) => (
          <li key={pod.name} className="pod">
            <Name pod={pod} />
            <Track stage={pod.stage ?? null} waits={waits(pod)} fenced={pod.fenced} />
            <Facts pod={pod} told={told} />
          </li>
        ))}
        {missing > 0 && <li className="quiet">{missing} more will be created.</li>}
        {pods && pods.length > shown.length && <li className="quiet">and {pods.length - shown.length} more pods</li>}
      </ul>
    </li>
  );
}

function Name({ pod }: { pod: Pod }) {
  return (
    <span className="name">
      <span className={pod.ready ? "dot good" : "dot"} role="img" aria-label={pod.ready ? "ready" : "not ready"}>
        {pod.ready ? "●" : "○"}
      </span>{" "}
      {pod.name}
    </span>
  );
}

/** Four places; the mark moves to that of the stage. */
function Track({ stage, waits, fenced }: { stage: string | null; waits?: string; fenced?: boolean }) {
  const at = STAGES.findIndex((each) => each === stage);
  const state = fenced ? "fenced" : at < 0 ? "none" : at === STAGES.length - 1 ? "writes" : "";
  return (
    <span className={`track ${state}`} role="img" aria-label={`Stage: ${stage ?? waits ?? "none yet"}`}>
      {STAGES.map((each, number) => (
        <i key={each} className={number < at ? "past" : ""}>
          {each}
        </i>
      ))}
      <b style={{ transform: `translateX(${Math.max(0, at) * 100}%)` }}>
        {fenced ? "fenced" : (stage ?? waits ?? "no answer")}
      </b>
    </span>
  );
}

function waits(pod: Pod): string {
  if (pod.phase === "Terminating") return "ends";
  return pod.phase === "Running" ? "no answer" : "starts";
}

function Facts({ pod, told }: { pod: Pod; told?: Set<string> }) {
  const lag = pod.target == null || pod.progress == null ? 0 : Math.max(0, pod.target - pod.progress);
  const facts: ReactNode[] = [];
  if (pod.phase === "Terminating") facts.push("is being deleted");
  else if (pod.phase !== "Running") facts.push(pod.waiting ?? pod.phase);
  else if (pod.waiting && !pod.ready) facts.push(pod.waiting);
  if (pod.restarts > 0) facts.push(`started again ${pod.restarts} ×`);
  if (pod.stage && pod.stage !== "ReadWrite" && lag > 0)
    facts.push(
      <>
        <progress max={pod.target ?? 1} value={pod.progress ?? 0} aria-label={`Progress of ${pod.name}`} />{" "}
        {lag.toLocaleString()} {pod.unit} behind
      </>,
    );
  if (pod.phase !== "Terminating") facts.push(...blockers(pod, told));
  return (
    <span className="facts quiet">
      {facts.map((each, number) => (
        <span key={number}>{each}</span>
      ))}
    </span>
  );
}

function blockers(pod: Pod, told: Set<string> | undefined): string[] {
  return (pod.blockers ?? []).map(({ reason, text }) => (told?.has(text) ? reason : `${reason}: ${text}`));
}
