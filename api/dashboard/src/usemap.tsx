// Which resource uses which, as a picture, with what goes over each arrow.
import type { Schemas } from "./api";
import { shown } from "./chart";
import { type Arrow, type Box, Picture } from "./graph";
import { addressOf, health, type KindList, newest, type Resource } from "./model";
import { Empty, Panel } from "./ui";

const BOXES_MAX = 60; // more are no picture

interface Use {
  /** Of the resource that uses another, and of that other one. */
  from: string;
  to: string;
  /** In the spec, to the name. */
  at: string[];
  what: string;
  short: string;
  /** Whether the user's line tells how much of it there is; a RaftCluster's is of all its users together. */
  rated: boolean;
}

const USES: Use[] = [
  { from: "dataflows", to: "computeclusters", at: ["computeClusterRef"], what: "runs in", short: "", rated: false },
  { from: "computeclusters", to: "waltzclusters", at: ["waltzClusterRef"], what: "reads and writes", short: "ticks", rated: true },
  { from: "coordinators", to: "waltzclusters", at: ["log", "waltzClusterRef"], what: "keeps its log in", short: "log", rated: true },
  { from: "waltzclusters", to: "raftclusters", at: ["metadata", "raftClusterRef"], what: "keeps its metadata in", short: "metadata", rated: false },
];
const LAYERS: Record<string, number> = { dataflows: 0, computeclusters: 1, coordinators: 1, waltzclusters: 2, raftclusters: 3 };

interface MapOf {
  lists: KindList[];
  lines: Map<string, Schemas["SeriesLine"]>;
  filter: string;
}

export function UseMap({ lists, lines, filter }: MapOf) {
  const known = new Map(lists.flatMap(({ plural, items }) => items.map((each) => [addressOf(plural, each), { plural, resource: each }])));
  const arrows = lists
    .flatMap(({ plural, items }) => USES.filter(({ from }) => from === plural).flatMap((use) => items.map((each) => arrow(use, each, lines))))
    .filter((each) => each !== null && known.has(each.to) && `${each.from} ${each.to}`.includes(filter)) as Arrow[];
  const used = new Set(arrows.flatMap(({ from, to }) => [from, to]));
  if (used.size === 0) return null;
  if (used.size > BOXES_MAX)
    return (
      <Panel title="Map">
        <Empty>{used.size} resources use each other: filter by name or namespace to see which.</Empty>
      </Panel>
    );
  const first = Math.min(...[...used].map((key) => LAYERS[known.get(key)?.plural ?? ""] ?? 0));
  const taken: number[] = [];
  const boxes: Box[] = [];
  for (const [key, { plural, resource }] of known) {
    if (!used.has(key)) continue;
    const layer = (LAYERS[plural] ?? 0) - first;
    const place = taken[layer] ?? 0;
    taken[layer] = place + 1;
    const { tone, word } = health(resource);
    boxes.push({ key, name: resource.metadata.name, note: tone === "good" ? resource.kind : `${resource.kind} · ${word}`, layer, place });
  }
  return <Picture title="Map" aside="who uses whom" caption="Who uses whom" boxes={boxes} arrows={arrows} />;
}

function arrow(use: Use, resource: Resource, lines: MapOf["lines"]): Arrow | null {
  const ref = use.at.reduce<unknown>((place, name) => (place as Record<string, unknown> | undefined)?.[name], resource.spec) as
    | { name?: string }
    | undefined;
  if (!ref?.name) return null;
  const { namespace, name } = resource.metadata;
  const [from, to] = [`${use.from}/${namespace}/${name}`, `${use.to}/${namespace}/${ref.name}`];
  const line = use.rated ? lines.get(from) : undefined;
  const value = line && newest(line);
  const label = [use.short, line && value != null && shown(value, line.unit)].filter(Boolean).join(" · ");
  return { from, to, label, words: [`${name} ${use.what} ${ref.name}`, label], failed: false };
}
