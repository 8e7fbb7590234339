// All resources, kept current by one stream; TanStack Query's cache is the only store.
import { type QueryClient, useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { type ApiError, type Connection, follow } from "./api";
import type { KindList, Resource } from "./model";

const KEY = ["resources"];

export interface Live {
  state: Connection;
  problem: ApiError | null;
}

/** Follow the resources while the component is mounted; changes of one frame reach the page together. */
export function useLive(client: QueryClient, token: string): Live {
  const [live, setLive] = useState<Live>({ state: "connecting", problem: null });
  useEffect(() => {
    const stop = new AbortController();
    const lists = new Map<string, Map<string, Resource>>();
    const kinds = new Map<string, string>();
    let frame = 0;
    const publish = () => {
      frame = 0;
      const all: KindList[] = [...lists].map(([plural, items]) => ({
        plural,
        kind: kinds.get(plural) ?? plural,
        items: [...items.values()].sort((a, b) => place(a).localeCompare(place(b))),
      }));
      client.setQueryData(KEY, all);
    };
    void follow(
      "/resources",
      ({ event, data }) => {
        const { plural, kind, items, object } = JSON.parse(data) as Message;
        if (event === "snapshot") {
          kinds.set(plural, kind);
          lists.set(plural, new Map(items.map((each) => [each.metadata.uid, each])));
        } else if (event === "deleted") lists.get(plural)?.delete(object.metadata.uid);
        else lists.get(plural)?.set(object.metadata.uid, object);
        frame ||= requestAnimationFrame(publish);
      },
      (state, problem) => setLive({ state, problem: problem ?? null }),
      stop.signal,
    );
    return () => {
      stop.abort();
      cancelAnimationFrame(frame);
    };
  }, [client, token]);
  return live;
}

interface Message {
  plural: string;
  kind: string;
  items: Resource[];
  object: Resource;
}

const place = (resource: Resource) => `${resource.metadata.namespace}/${resource.metadata.name}`;

export function useResources(): KindList[] | undefined {
  return useQuery<KindList[]>({ queryKey: KEY, enabled: false, staleTime: Infinity, gcTime: Infinity }).data;
}

export interface Stream<T> extends Live {
  data: T | undefined;
}

/** The newest event of that name of a stream; `path` null follows nothing. What was told last stays while it is lost. */
export function useStream<T>(path: string | null, event: string): Stream<T> {
  const [stream, setStream] = useState<Stream<T> & { path: string | null }>({ ...NOTHING, path });
  useEffect(() => {
    if (path === null) return;
    const stop = new AbortController();
    let newest: T | undefined;
    let frame = 0;
    const set = (changes: Partial<Stream<T>>) =>
      setStream((before) => ({ ...(before.path === path ? before : NOTHING), ...changes, path }));
    const publish = () => {
      frame = 0;
      set({ data: newest });
    };
    void follow(
      path,
      (message) => {
        if (message.event !== event) return;
        newest = JSON.parse(message.data) as T;
        frame ||= requestAnimationFrame(publish);
      },
      (state, problem) => set({ state, problem: problem ?? null }),
      stop.signal,
    );
    return () => {
      stop.abort();
      cancelAnimationFrame(frame);
    };
  }, [path, event]);
  return stream.path === path ? stream : NOTHING;
}

const NOTHING = { data: undefined, state: "connecting", problem: null } as const;

/** The time, each second, for what counts from a moment. */
export function useNow(): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}
