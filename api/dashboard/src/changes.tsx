// Changes of a spec from the page: what would change stands there before anything does.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { post, type Schemas } from "./api";
import type { Resource } from "./model";
import { Confirm, Dialog, Empty, Table, Told } from "./ui";

/** Of a way back also the generation that was shown: another one may be active by the time it is done. */
type Changed = Pick<Schemas["UndoResult"], "changes" | "effect"> & { generation?: number };
type Fields = Record<string, unknown>;

const isFields = (value: unknown): value is Fields => typeof value === "object" && value !== null && !Array.isArray(value);

interface Difference {
  field: string;
  now: unknown;
  then: unknown;
}

/** What a merge patch changes in `present`, field by field. */
export function differences(present: unknown, changes: Fields, at = "spec"): Difference[] {
  return Object.entries(changes).flatMap(([name, then]) => {
    const now = isFields(present) ? present[name] : undefined;
    const field = `${at}.${name}`;
    if (isFields(then) && Object.keys(then).length > 0) return differences(now, then, field);
    return JSON.stringify(now) === JSON.stringify(then) ? [] : [{ field, now, then }];
  });
}

const written = (value: unknown) =>
  value === undefined || value === null || value === "" ? "default" : typeof value === "string" ? value : JSON.stringify(value);

interface ChangeOf {
  label: string;
  title: string;
  path: string;
  /** What is posted there; with `dryRun` it is only asked for. */
  body: Fields;
  resource: Resource;
  onClose: () => void;
}

/** Asks the control plane what would change, shows it, and changes it when told so. */
export function Change({ label, title, path, body, resource, onClose }: ChangeOf) {
  const planned = useQuery({
    queryKey: ["change", path, body, resource.metadata.uid],
    queryFn: () => post<Changed>(path, { ...body, dryRun: true }),
    gcTime: 0, // the next dialog asks anew: the spec may be another by then
    retry: false,
  });
  if (!planned.data)
    return (
      <Dialog title={title} onClose={onClose}>
        <Told query={planned} what="what would change">
          {() => null}
        </Told>
        <div className="actions">
          <button onClick={onClose}>Cancel</button>
        </div>
      </Dialog>
    );
  const { generation } = planned.data;
  const shown = generation === undefined ? body : { ...body, generation };
  return (
    <Confirm label={label} title={title} what={resource.metadata.name} danger act={() => post(path, shown)} onClose={onClose}>
      <Differences present={resource.spec} changed={planned.data} />
    </Confirm>
  );
}

function Differences({ present, changed }: { present: Fields; changed: Changed }) {
  const found = differences(present, changed.changes);
  return (
    <>
      <p>
        <strong>{changed.effect.charAt(0).toUpperCase() + changed.effect.slice(1)}.</strong>
      </p>
      {found.length === 0 ? (
        <Empty>No field changes.</Empty>
      ) : (
        <Table caption="What changes" head={["Field", "Now", "Then"]}>
          {found.map((each) => (
            <tr key={each.field}>
              <th scope="row">{each.field}</th>
              <td>
                <del>{written(each.now)}</del>
              </td>
              <td>
                <ins>{written(each.then)}</ins>
              </td>
            </tr>
          ))}
        </Table>
      )}
    </>
  );
}

const IMAGE_LENGTH_MAX = 253; // as the API

/** Asks for another image, then shows what it changes. */
export function ImageChange({ path, resource, onClose }: { path: string; resource: Resource; onClose: () => void }) {
  const present = String(resource.spec["image"] ?? "");
  const [image, setImage] = useState(present);
  const [chosen, setChosen] = useState<string | null>(null);
  if (chosen !== null)
    return (
      <Change
        label="Change image"
        title={`Change image of ${resource.metadata.name}?`}
        path={`${path}/rollout/image`}
        body={{ image: chosen }}
        resource={resource}
        onClose={onClose}
      />
    );
  return (
    <Dialog title={`Image of ${resource.metadata.name}`} onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          setChosen(image.trim());
        }}
      >
        <label>
          Image{" "}
          <input value={image} maxLength={IMAGE_LENGTH_MAX} onChange={(event) => setImage(event.target.value)} spellCheck={false} />
        </label>
        <p className="quiet">Empty is the image of the operator. Nothing changes yet.</p>
        <div className="actions">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button className="primary" disabled={image.trim() === present}>
            Show what changes
          </button>
        </div>
      </form>
    </Dialog>
  );
}
