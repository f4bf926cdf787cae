import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import type { IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { promisify } from 'node:util';
import type { ExecutionContext } from 'ava';
import { and, eq, isNull } from 'drizzle-orm';
import { NPM_PACKAGE } from '../../api/docs/packages.ts';
import { transaction } from '../../db/connection/client.ts';
import { settleIn } from '../../db/requests/settle.ts';
import { requests } from '../../db/schema.ts';
import { RULES } from './organization.ts';
import type { Api } from './stack.ts';
import { storeEmail } from './stored.ts';
import { serveVendor } from './vendors.ts';

// The environment of the TypeScript client in its tests: a gateway that can spoil responses, and a
// stand-in for the workers.

/**
 * Makes a project in an empty folder as `npm init` does, and installs a client that the API
 * serves: the newest one, if none is named.
 */
export async function installClient(
  folder: string,
  baseUrl: string,
  name = NPM_PACKAGE.name,
): Promise<void> {
  const npm = (...args: string[]) => promisify(execFile)('npm', args, { cwd: folder });
  const response = await fetch(`${baseUrl}/docs/${name}`);
  await writeFile(join(folder, name), await response.bytes());
  await npm('init', '--yes');
  await npm('install', '--prefer-offline', '--no-audit', '--no-fund', `./${name}`);
}

/**
 * Returns consecutive NPIs that belong to no person. Tests that share a database start far from
 * each other.
 */
export function npisFrom(first: number, count: number): string[] {
  return Array.from({ length: count }, (_, index) =>
    String(3_000_000_000 + first + index),
  );
}

/** Returns the email that `work` stores for an NPI. */
export function emailOf(npi: string): string | null {
  return Number(npi) % 2 === 0 ? `someone.${npi}@practice.example` : null;
}

/**
 * Settles the open requests of one organization as workers would, with an email for each even NPI.
 * @param holds requests stay open while it returns true for their NPI
 */
export function work(
  t: ExecutionContext,
  { db }: Pick<Api, 'db'>,
  organizationId: string,
  holds: (npi: string) => boolean = () => false,
): void {
  const ending = new AbortController();
  const step = async () => {
    const open = await db.drizzle
      .select({ id: requests.id, npi: requests.npi })
      .from(requests)
      .where(and(eq(requests.organizationId, organizationId), isNull(requests.settledAt)))
      .orderBy(requests.id);
    const some = open.filter(({ npi }) => !holds(npi)).slice(0, 60);
    for (const { npi } of some) {
      const email = emailOf(npi);
      if (email) await storeEmail(db, { npi, email });
    }
    // Commits all of them together, so that waiting clients are woken only once.
    await transaction(db, async (tx) => {
      for (const { id } of some)
        await settleIn(tx, id, 'finished', 'nobody knows one', RULES);
    });
  };
  const working = (async () => {
    while (!ending.signal.aborted) {
      // On a busy machine the database may be late. The step is repeated, as a worker would.
      await step().catch((error) => t.log(error));
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  })();
  t.teardown(async () => {
    ending.abort();
    await working;
  });
}

/** One request of the client and the status of its response, or null without a response. */
export interface Passed {
  readonly method: string;
  readonly path: string;
  readonly headers: IncomingMessage['headers'];
  readonly body: string;
  status: number | null;
}

/** The replacement for a response: another response, or a broken connection. */
export type Spoiled =
  | 'broken'
  | {
      readonly status: number;
      readonly headers?: Readonly<Record<string, string>>;
      readonly body?: string;
    };

/**
 * Starts a gateway to the API that spoils selected requests.
 * @param spoil called for each request before it is passed on (`before`) and before its response is
 * returned (`after`)
 */
export async function startGateway(
  t: ExecutionContext,
  target: string,
  spoil: (
    request: Passed,
    moment: 'before' | 'after',
  ) => Spoiled | null | Promise<Spoiled | null> = () => null,
) {
  const passed: Passed[] = [];
  const url = await serveVendor(t, async (request, response) => {
    const { method = '', url: path = '', headers } = request;
    const body = await buffer(request);
    const one: Passed = { method, path, headers, body: body.toString(), status: null };
    passed.push(one);
    const gone = new AbortController();
    response.once('close', () => gone.abort());
    const give = (spoiled: Spoiled) => {
      if (spoiled === 'broken') return void response.destroy();
      one.status = spoiled.status;
      response.writeHead(spoiled.status, spoiled.headers).end(spoiled.body ?? '');
    };
    const early = await spoil(one, 'before');
    if (early) return give(early);
    const {
      authorization = '',
      prefer,
      'idempotency-key': key,
    } = headers as Record<string, string>;
    const reply = await fetch(`${target}${path}`, {
      method,
      headers: {
        ...{ authorization, 'content-type': 'application/json' },
        ...(prefer ? { prefer } : {}),
        ...(key ? { 'idempotency-key': key } : {}),
      },
      ...(method === 'POST' ? { body } : {}),
      signal: gone.signal,
    }).catch(() => null);
    const text = (await reply?.text().catch(() => null)) ?? null;
    if (!reply || text === null) return void response.destroy();
    const late = await spoil({ ...one, status: reply.status }, 'after');
    if (late) return give(late);
    const kept = [...reply.headers].filter(
      ([name]) =>
        !/^(connection|keep-alive|transfer-encoding|content-(length|encoding))$/.test(
          name,
        ),
    );
    give({ status: reply.status, headers: Object.fromEntries(kept), body: text });
  });
  return { url, passed };
}
