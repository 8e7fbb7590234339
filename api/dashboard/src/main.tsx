import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode, useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { ApiError, setToken, takeToken } from "./api";
import { useLive } from "./live";
import { Overview } from "./overview";
import { ResourcePage } from "./resource";
import "./style.css";
import { TracePage, Traces } from "./traces";
import { CONNECTION } from "./ui";

const client = new QueryClient({
  defaultOptions: {
    queries: { retry: (count, error) => !(error instanceof ApiError && error.status < 500) && count < 2 },
  },
});

function useRoute(): string[] {
  const read = () => location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const change = () => {
      setRoute(read());
      window.scrollTo(0, 0);
    };
    window.addEventListener("hashchange", change);
    return () => window.removeEventListener("hashchange", change);
  }, []);
  return route;
}

function View({ route }: { route: string[] }) {
  const [first, second, third] = route;
  if (first === "traces") return second ? <TracePage key={second} id={second} /> : <Traces />;
  if (first && second && third) return <ResourcePage plural={first} namespace={second} name={third} />;
  return <Overview />;
}

function Page({ token, leave }: { token: string; leave: (why: string) => void }) {
  const route = useRoute();
  const { state, problem } = useLive(client, token);
  useEffect(() => {
    if (state === "refused") leave(problem?.message ?? "The token is not valid.");
  }, [state, problem, leave]);
  return (
    <>
      <a className="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>
        Skip to the content
      </a>
      <nav aria-label="Views">
        <a className="brand" href="#/">
          Pavane
        </a>
        <a href="#/" aria-current={route[0] === "traces" ? undefined : "page"}>
          Resources
        </a>
        <a href="#/traces" aria-current={route[0] === "traces" ? "page" : undefined}>
          Traces
        </a>
        <a href="/docs">REST API</a>
        <span className={`connection ${state}`} role="status">
          {CONNECTION[state]}
        </span>
        <button onClick={() => leave("")}>Sign out</button>
      </nav>
      <main id="main" tabIndex={-1} className={state === "lost" ? "stale" : ""}>
        <View route={route} />
      </main>
    </>
  );
}

function Login({ why, enter }: { why: string; enter: (token: string) => void }) {
  const [token, setText] = useState("");
  return (
    <main className="login">
      <h1>Pavane</h1>
      {why && (
        <p className="failure" role="alert">
          {why}
        </p>
      )}
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (token.trim()) enter(token.trim());
        }}
      >
        <label htmlFor="token">Token of the cluster</label>
        <input id="token" type="password" autoComplete="off" value={token} onChange={(event) => setText(event.target.value)} />
        <button className="primary">Sign in</button>
      </form>
      <p className="quiet">
        On a local cluster <code>pavane dashboard</code> prints a link that signs you in. Elsewhere make a token with{" "}
        <code>kubectl create token NAME --audience pavane-api</code>. It may do here what it may do with kubectl.
      </p>
    </main>
  );
}

function App() {
  const [token, setCurrent] = useState(takeToken);
  const [why, setWhy] = useState("");
  const [leave] = useState(() => (reason: string) => {
    setToken(null);
    client.clear();
    setWhy(reason);
    setCurrent(null);
  });
  if (!token)
    return (
      <Login
        why={why}
        enter={(given) => {
          setToken(given);
          setCurrent(given);
        }}
      />
    );
  return <Page token={token} leave={leave} />;
}

createRoot(document.getElementById("root") as HTMLElement).render(
  <StrictMode>
    <QueryClientProvider client={client}>
      <App />
    </QueryClientProvider>
  </StrictMode>,
);
