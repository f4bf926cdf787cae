import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import test, { type ExecutionContext } from 'ava';
import { sign } from '../../../../activities/webhooks/signature.ts';
import { freePort } from '../../../../deploy/ports.ts';
import { temporaryFolder } from '../../../support/database.ts';
import { program } from '../../../support/documented/examples.ts';
import { eventually } from '../../../support/organization.ts';
import { endWithThisProcess } from '../../../support/programs.ts';
import { documentedPython } from '../../../support/python.ts';

// Runs the receivers of api/docs/webhooks.md unchanged, and sends them deliveries that our code
// signed.

const ROOT = fileURLToPath(new URL('../../../..', import.meta.url));
const SECRET = newSecret();
const python = await documentedPython();

function newSecret(): string {
  return `whsec_${randomBytes(32).toString('base64')}`;
}

for (const [name, file, command] of [
  ['Express', 'receiver-express.mjs', process.execPath],
  ['FastAPI', 'receiver_fastapi.py', python],
] as const) {
  const run = command === null ? test.skip : test;
  run(
    `the ${name} receiver uses each result once and rejects bad signatures`,
    async (t) => {
      const { url, line } = await start(t, command ?? '', file);
      const send = (parts: Parts) => deliver(url, parts);
      const first = { body: bodyOf('req_1', 'req_2') };
      t.is(await send(first), 204);
      t.is(await line(), '1000000001 completed zoë@example.com');
      t.is(await line(), '1000000002 completed zoë@example.com');

      const refused: Record<string, Parts> = {
        'another secret': { body: bodyOf('req_3'), secrets: [newSecret()] },
        'a body that was altered': { body: bodyOf('req_3'), sent: bodyOf('req_4') },
        'a delivery that is old': { body: bodyOf('req_3'), ageSeconds: 600 },
        'a delivery from the future': { body: bodyOf('req_3'), ageSeconds: -600 },
        'no signature': { body: bodyOf('req_3'), headers: { 'webhook-signature': '' } },
        'a malformed signature': {
          body: bodyOf('req_3'),
          headers: { 'webhook-signature': 'v1' },
        },
        'no signature of a version that it knows': {
          body: bodyOf('req_3'),
          headers: { 'webhook-signature': 'v2,AA==' },
        },
        'no body': { body: bodyOf('req_3'), sent: '' },
      };
      for (const [what, parts] of Object.entries(refused))
        t.is(await send(parts), 400, what);

      // The receiver gets a delivery again with a new timestamp, and a batch with a result that it
      // already has.
      t.is(await send(first), 204);
      t.is(
        await send({ body: bodyOf('req_2', 'req_5'), secrets: [newSecret(), SECRET] }),
        204,
      );
      t.is(await line(), '1000000005 completed zoë@example.com');
    },
  );
}

interface Parts {
  /** The signed body. */
  readonly body: string;
  /** The sent body, if it differs from the signed one. */
  readonly sent?: string;
  readonly secrets?: readonly string[];
  readonly ageSeconds?: number;
  readonly headers?: Readonly<Record<string, string>>;
}

function headersOf({ body, secrets = [SECRET], ageSeconds = 0, headers = {} }: Parts) {
  const timestamp = Math.floor(Date.now() / 1000) - ageSeconds;
  return {
    'content-type': 'application/json',
    'webhook-id': 'msg_1',
    'webhook-timestamp': String(timestamp),
    'webhook-signature': sign({ id: 'msg_1', timestamp, body, secrets }),
    ...headers,
  };
}

async function deliver(url: string, parts: Parts): Promise<number> {
  const response = await fetch(url, {
    method: 'POST',
    headers: headersOf(parts),
    body: parts.sent ?? parts.body,
  });
  await response.arrayBuffer();
  return response.status;
}

/** Returns an envelope with one result for each id; `req_7` has the NPI 1000000007. */
function bodyOf(...ids: readonly string[]): string {
  return JSON.stringify({
    data: ids.map((id) => ({
      request_id: id,
      npi: `100000000${id.at(-1)}`,
      status: 'completed',
      email: 'zoë@example.com',
    })),
  });
}

/** Makes a folder where the example finds its packages, as after the install in its first line. */
async function exampleFolder(t: ExecutionContext): Promise<string> {
  const dir = temporaryFolder(t.teardown);
  await symlink(join(ROOT, 'node_modules'), join(dir, 'node_modules'));
  return dir;
}

async function start(t: ExecutionContext, command: string, file: string) {
  const dir = await exampleFolder(t);
  await writeFile(join(dir, file), program(file));
  const child = spawn(command, [join(dir, file)], {
    cwd: dir,
    env: {
      PATH: process.env.PATH,
      WEBHOOK_SECRET: SECRET,
      PORT: String(await freePort()),
      PYTHONIOENCODING: 'utf-8',
    },
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  endWithThisProcess(child);
  t.teardown(() => stop(child));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const line = async () => String((await lines.next()).value);
  const [, url = ''] = /^receiver on (http:\S+)$/.exec(await line()) ?? [];
  // The receiver prints its URL before it listens.
  await eventually(() =>
    fetch(url).then(
      () => true,
      () => null,
    ),
  );
  return { url, line };
}

function stop(child: ChildProcess): void {
  if (child.exitCode === null) child.kill('SIGKILL');
}
