// A SwimGroup as one of its pods sees it: who is alive, suspect or dead, as a picture and as a table.
import type { Schemas } from "./api";
import { usePolled } from "./live";
import { condition, type Resource } from "./model";
import { Empty, Facts, Panel, Rows, Table, Told } from "./ui";

const AGAIN_MS = 1000; // a group has no stream
const WIDTH_PX = 360;
const MARGIN_PX = 32; // around the first ring
const RING_PX = { few: 72, outer: 128, inner: 40 }; // radius of the first ring, few or many on it, and of the last one
const FEW = 6;
const NODE_PX = 9;
const NAMED_MAX = 16; // members whose names have room around one ring
const PLACE_PX = { named: 44, many: 20 }; // between two members of a ring, and between two rings

type Group = Schemas["GroupMembers"];

interface Member {
  id: number;
  name: string;
  state: "Alive" | "Suspect" | "Dead";
  stage: string;
  /** Generation of its pod; 0 of one that is no pod of the resource, or has not said. */
  generation: number;
  incarnation: number | null;
  address: string | null;
  asked: boolean;
}

const TONES = { Alive: "good", Suspect: "busy", Dead: "bad" } as const;
const SIGNS = { Alive: "●", Suspect: "◐", Dead: "✕" } as const;

export function Swim({ path, resource }: { path: string; resource: Resource }) {
  const group = usePolled<Group>(`${path}/members`, AGAIN_MS);
  return (
    <Panel title="Members" aside={<span className="quiet">{group.data && `as ${group.data.asked} sees them`}</span>}>
      <Told query={group} what="the members">
        {(data) => <OneGroup group={data} resource={resource} />}
      </Told>
    </Panel>
  );
}

function OneGroup({ group, resource }: { group: Group; resource: Resource }) {
  const members = membersOf(group);
  const count = (state: string) => members.filter((each) => each.state === state).length;
  const generations = [...new Set(members.map((each) => each.generation))].filter(Boolean);
  const agreed = condition(resource, "MembershipConverged");
  const foreign = members.filter((each) => each.generation === 0).length;
  return (
    <>
      <Facts
        items={[
          ["Alive", count("Alive").toLocaleString()],
          ["Suspect", <span className={count("Suspect") ? "busy" : ""}>{count("Suspect").toLocaleString()}</span>],
          ["Dead", <span className={group.dead ? "bad" : ""}>{group.dead.toLocaleString()}</span>],
          ["Generations", generations.join(" and ") || "–"],
          ...(foreign ? ([["Not of this resource", foreign.toLocaleString()]] as [string, string][]) : []),
          [
            "Digest",
            <span title={agreed?.message}>
              <code>{group.digest ?? "–"}</code>{" "}
              {agreed && <small className={agreed.status === "True" ? "good" : "busy"}>{agreed.status === "True" ? "● all agree" : "◐ they differ"}</small>}
            </span>,
          ],
        ]}
      />
      {members.length === 0 ? (
        <Empty>Nobody is in the group.</Empty>
      ) : (
        <div className="beside">
          <Picture members={members} name={resource.metadata.name} />
          <Table
            caption="Members"
            rows={members.length}
            head={["Member", "State", "Stage", "#Generation", "#Incarnation", "Address"]}
          >
            <Rows
              items={members}
              row={(each) => (
                <tr key={each.id}>
                  <th scope="row">{each.name}</th>
                  <td className={`nowrap ${TONES[each.state]}`}>
                    {SIGNS[each.state]} {each.state}
                  </td>
                  <td>{each.stage}</td>
                  <td className="number">{each.generation || "–"}</td>
                  <td className="number">{each.incarnation ?? "–"}</td>
                  <td>{each.address ?? "–"}</td>
                </tr>
              )}
            />
          </Table>
        </div>
      )}
    </>
  );
}

/** All that the pod knows: by generation and name, those that are no pods of the resource at the end. */
function membersOf(group: Group): Member[] {
  const found: Member[] = group.items.map((each) => ({
    id: each.id,
    name: each.pod ?? String(each.id),
    state: each.state === "Suspect" ? "Suspect" : "Alive",
    stage: each.stage,
    generation: each.foreign ? 0 : each.rollout,
    incarnation: each.incarnation,
    address: each.address ?? null,
    asked: each.pod === group.asked,
  }));
  for (const each of group.deadMembers)
    found.push({
      id: each.id,
      name: each.pod ?? String(each.id),
      state: "Dead",
      stage: "–",
      generation: each.pod ? each.rollout : 0,
      incarnation: each.incarnation,
      address: null,
      asked: false,
    });
  const order = (each: Member) => each.generation || Infinity;
  return found.sort((a, b) => order(a) - order(b) || a.name.localeCompare(b.name, "en", { numeric: true }));
}

interface Place {
  member: Member;
  x: number;
  y: number;
}

/** Whom the asked member sees: it is in the middle, the others around it, of each generation side by side. */
function Picture({ members, name }: { members: Member[]; name: string }) {
  const others = members.filter((each) => !each.asked);
  const outer = others.length <= FEW ? RING_PX.few : RING_PX.outer;
  const centre = { x: WIDTH_PX / 2, y: 0 };
  const asked = members.find((each) => each.asked);
  const named = others.length <= NAMED_MAX;
  const places = around(others, centre, outer, named);
  const heights = [centre.y, ...places.map((each) => each.y)];
  const top = Math.min(...heights) - MARGIN_PX;
  const size = { width: WIDTH_PX, height: Math.max(...heights) + MARGIN_PX - top };
  const short = (member: Member) => member.name.replace(`${name}-member-`, "").slice(0, 10);
  return (
    <svg className="graph members" viewBox={`0 ${top} ${size.width} ${size.height}`} {...size} aria-hidden="true">
      {asked &&
        places.map(({ member, x, y }) => (
          <line key={member.id} className={`edge ${TONES[member.state]}`} x1={centre.x} y1={centre.y} x2={x} y2={y} />
        ))}
      {places.map(({ member, x, y }) => (
        <Node key={member.id} member={member} x={x} y={y} label={named ? short(member) : ""} />
      ))}
      {asked && <Node member={asked} {...centre} label={short(asked)} />}
    </svg>
  );
}

/** On a ring, or on several if there are many; who finds no place any more is in the table alone. */
function around(members: Member[], centre: { x: number; y: number }, outer: number, named: boolean): Place[] {
  const step = named ? PLACE_PX.named : PLACE_PX.many;
  const found: Place[] = [];
  for (let radius = outer; radius >= RING_PX.inner && found.length < members.length; radius -= step) {
    const ring = members.slice(found.length, found.length + (named ? NAMED_MAX : Math.floor((2 * Math.PI * radius) / step)));
    ring.forEach((member, number) => {
      const angle = Math.PI * ((2 * number) / ring.length - (ring.length === 2 ? 1 : 0.5)); // two: left and right
      found.push({ member, x: centre.x + radius * Math.cos(angle), y: centre.y + radius * Math.sin(angle) });
    });
  }
  return found;
}

function Node({ member, x, y, label }: { member: Member; x: number; y: number; label: string }) {
  return (
    <g className={`node ${TONES[member.state]} ${member.stage}`} transform={`translate(${x.toFixed(1)} ${y.toFixed(1)})`}>
      <title>{`${member.name}: ${member.state}, ${member.stage}`}</title>
      <circle r={NODE_PX} />
      {member.state !== "Alive" && (
        <text textAnchor="middle" y="4" className="sign">
          {SIGNS[member.state]}
        </text>
      )}
      {label && (
        <text textAnchor="middle" y={NODE_PX + 14} className={member.asked ? "name" : ""}>
          {label}
        </text>
      )}
    </g>
  );
}
