// A Dataflow: a script of views without pods, which its ComputeCluster keeps.
import type { Resource } from "./model";
import { Panel } from "./ui";
import { Views } from "./views";

export function Dataflow({ resource }: { resource: Resource }) {
  const { namespace } = resource.metadata;
  const { computeClusterRef, script } = resource.spec as unknown as { computeClusterRef: { name: string }; script: string };
  const cluster = encodeURIComponent(computeClusterRef.name);
  const kept = (
    <span className="quiet">
      kept by <a href={`#/computeclusters/${namespace}/${cluster}`}>{computeClusterRef.name}</a>
    </span>
  );
  return (
    <>
      <Panel title="SQL" aside={kept}>
        <pre tabIndex={0}>{script}</pre>
      </Panel>
      <Views path={`/namespaces/${encodeURIComponent(namespace)}/computeclusters/${cluster}`} only={resource} />
    </>
  );
}
