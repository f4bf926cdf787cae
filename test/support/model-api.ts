import { fileURLToPath } from 'node:url';
import { freePort, LOOPBACK, launch, type ServerProcess } from '../../deploy/local/processes.ts';
import { testSetting } from './environment.ts';
import { type Answer, createCaller, eventually } from './organization.ts';

/** The API as a process of its own, so that it can be one of several and can be killed. */
export interface ApiProcess {
  readonly url: string;
  /** SIGKILL; returns once it is gone. */
  kill(): Promise<void>;
  /** Starts it again where it was, after a kill. */
  start(): Promise<void>;
  stop(): Promise<void>;
}

const PROGRAM = fileURLToPath(new URL('../../deploy/api.ts', import.meta.url));

export async function startApi(databaseUrl: string): Promise<ApiProcess> {
  const port = await freePort();
  const url = `http://${LOOPBACK}:${port}`;
  let running: ServerProcess | undefined;
  const start = async () => {
    const api = launch({
      name: 'API',
      command: process.execPath,
      args: [PROGRAM],
      stopSignal: 'SIGTERM',
      forceSignal: 'SIGKILL',
      env: {
        PATH: process.env.PATH,
        DATABASE_URL: databaseUrl,
        DATABASE_POOL: '16',
        API_HOST: LOOPBACK,
        API_PORT: String(port),
        LOG_LEVEL: 'error',
        TEMPORAL_ADDRESS: testSetting('TEST_TEMPORAL_ADDRESS'),
      },
    });
    running = api;
    await eventually(async () => {
      if (api.ending() !== undefined) throw new Error(`the API ended (${api.ending()}): ${api.tail()}`);
      return await fetch(`${url}/healthz`).then(
        ({ ok }) => ok || null,
        () => null,
      );
    });
  };
  await start();
  return {
    url,
    start,
    async kill() {
      if (!running) return;
      process.kill(running.pid, 'SIGKILL');
      await running.exited;
    },
    async stop() {
      await running?.stop();
    },
  };
}

/** A POST as a careful client sends it: again after a lost connection, a 409 or a 503, with the same headers. */
export async function postUntilAnswered<T>(
  url: string,
  apiKey: string,
  path: string,
  body: object,
  headers: Record<string, string> = {},
): Promise<Answer<T>> {
  const caller = createCaller(url, apiKey);
  return await eventually(async () => {
    const answer = await caller.call<T>('POST', path, JSON.stringify(body), headers).catch(() => null);
    return answer === null || answer.status === 409 || answer.status === 503 ? null : answer;
  });
}
