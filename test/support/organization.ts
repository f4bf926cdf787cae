import { randomUUID } from 'node:crypto';
import { connect } from 'node:net';
import type { ActivityRules } from '../../activities/deps.ts';
import { grantCredits } from '../../db/accounts/credits.ts';
import { issueKey } from '../../db/accounts/keys.ts';
import { createOrganization, setLimit } from '../../db/accounts/organizations.ts';
import type { Database } from '../../db/connection/client.ts';
import { joinLookup } from '../../db/lookups/lookups.ts';
import type { Retention } from '../../db/requests/retention.ts';
import {
  type SubmitCommand,
  type SubmitOutcome,
  type SubmitRules,
  submit,
} from '../../db/requests/submit.ts';
import { SECRET_KEYS } from './database.ts';

const DAY = 86_400_000;
export const BY = { actor: 'test', reason: 'test' };
/** The audit fields of changes that a person asked for. */
export const ASKED = { ...BY, askedBy: 'person', received: new Date(0) } as const;

/** The service's defaults. */
export const RETENTION: Retention = {
  resultsMs: 365 * DAY,
  evidenceMs: 180 * DAY,
  customDataMs: 90 * DAY,
  webhookLogMs: 30 * DAY,
  sandboxMs: 31 * DAY,
};

export const RULES: SubmitRules &
  Pick<ActivityRules, 'retention' | 'missMs' | 'policy' | 'rateWindowMs'> = {
  retention: RETENTION,
  lookupTimeoutMs: 60_000,
  rateWindowMs: 60_000,
  freshnessMs: 30 * DAY,
  replayMs: 30 * DAY,
  missMs: 14 * DAY,
  policy: 'vendor-or-verifier reject',
  idempotencyMs: DAY,
};

/** The rules of activities and of the reconciler, without waits. */
export const WORKER_RULES = {
  ...RULES,
  greylistMs: 1000,
  webhookScheduleMs: [0],
  webhookLongestRestMs: 1000,
  sweep: { startAfterMs: 0, checkEveryMs: 0 },
};

export interface Organization {
  readonly organizationId: string;
  readonly keyId: string;
  readonly apiKey: string;
}

/** Grants credits, with a reference that no other grant has. */
export async function grant(
  db: Database,
  organizationId: string,
  credits: number,
): Promise<void> {
  await grantCredits(db, BY, organizationId, credits, randomUUID());
}

/** Begins the lookups of requests, as workers do when they plan them. */
export async function joinLookups(
  db: Database,
  requestIds: readonly string[],
): Promise<void> {
  for (const requestId of requestIds) await joinLookup(db, requestId);
}

/** Opens a new organization with credits and one key. */
export async function openOrganization(
  db: Database,
  credits: number,
  // Tests poll faster than clients may.
  requestsPerMinute = 100_000,
): Promise<Organization> {
  // Operators open organizations, so this uses their rights even if the pool has others.
  const { id: organizationId } = await createOrganization(
    { ...db, secretKeys: SECRET_KEYS },
    BY,
    'Test',
  );
  if (credits > 0) await grantCredits(db, BY, organizationId, credits, 'opening');
  await setLimit(db, BY, organizationId, requestsPerMinute);
  const { id: keyId, apiKey } = await issueKey(db, BY, organizationId, 'test');
  return { organizationId, keyId, apiKey };
}

/** Opens the sandbox of an organization, with a test key. */
export async function openTestKey(
  db: Database,
  live: Organization,
): Promise<Organization> {
  const operator = { ...db, secretKeys: SECRET_KEYS };
  const { id, apiKey, organizationId } = await issueKey(
    operator,
    BY,
    live.organizationId,
    'test',
    { forSandbox: true },
  );
  await setLimit(db, BY, organizationId, 100_000);
  return { organizationId, keyId: id, apiKey };
}

/** Returns a submit as the API passes it on. */
export function submitCommand(
  { organizationId, keyId }: Organization,
  over: Partial<SubmitCommand> & Pick<SubmitCommand, 'npis'>,
): SubmitCommand {
  return {
    organizationId,
    apiKeyId: keyId,
    submittedAs: over.npis.length === 1 ? 'single' : 'bulk',
    requestedType: 'any',
    webhook: null,
    customData: null,
    outcomes: null,
    isOutcomeForced: false,
    idempotency: null,
    ...over,
  };
}

export interface SubmitResponse {
  readonly batch_id: string;
  readonly status: 'in-progress' | 'completed';
  readonly requests: readonly {
    readonly npi: string;
    readonly request_id: string;
    readonly poll_url: string;
  }[];
}

/** Returns the IDs of an accepted submit. */
export function acceptedIds(outcome: SubmitOutcome): {
  batchId: string;
  requestIds: string[];
} {
  if (outcome.kind !== 'accepted') throw new Error(`the submit was ${outcome.kind}`);
  const response = JSON.parse(outcome.response) as SubmitResponse;
  return {
    batchId: response.batch_id,
    requestIds: response.requests.map((one) => one.request_id),
  };
}

/** Submits as the API does. Returns the IDs of the batch and its requests. */
export async function submitAccepted(
  db: Database,
  organization: Organization,
  over: Parameters<typeof submitCommand>[1],
) {
  return acceptedIds(await submit(db, submitCommand(organization, over), RULES));
}

/** The envelope, as tests read it. */
export interface EnvelopeResponse {
  readonly batch: {
    readonly id: string;
    readonly status: string;
    readonly total: number;
    readonly completed_count: number;
    readonly created_at: string;
    readonly updated_at: string;
  };
  readonly webhook: {
    readonly url: string;
    readonly mode: string;
    readonly status: string;
  } | null;
  readonly custom_data: Record<string, unknown> | null;
  readonly usage: { readonly credits_used: number; readonly balance: number };
  readonly data: readonly {
    readonly request_id: string;
    readonly npi: string;
    readonly status: string;
    readonly replayed: boolean;
    readonly email_type: string | null;
    readonly email: string | null;
    readonly email_last_validated: string | null;
    readonly email_status: string | null;
  }[];
}

export interface ApiResponse<T = unknown> {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  readonly json: T;
}

/**
 * Codes of rejections because of other requests in progress. Such a request changed nothing and did
 * not count.
 */
const CROWDED: readonly unknown[] = ['too_many_at_once', 'overloaded'];

/**
 * Calls the API as a client of one organization, over real HTTP. It repeats a request while too
 * many others are in progress, which is common on a busy machine. It fails the test at the first
 * response that differs from the OpenAPI document.
 */
export function createCaller(baseUrl: string, apiKey: string) {
  const call = <T>(...request: Parameters<typeof send>): Promise<ApiResponse<T>> =>
    eventually(async () => {
      const reply = await send<T & { readonly code?: unknown }>(...request);
      return CROWDED.includes(reply.json?.code) ? null : reply;
    });
  const send = async <T>(
    method: string,
    path: string,
    body?: string | Uint8Array<ArrayBuffer>,
    headers: Record<string, string> = {},
  ): Promise<ApiResponse<T>> => {
    const response = await fetch(`${baseUrl}${path}`, {
      method,
      headers: {
        authorization: `Bearer ${apiKey}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body === undefined ? {} : { body }),
    });
    const text = await response.text();
    const isJson = response.headers.get('content-type')?.includes('json') ?? false;
    const reply = {
      status: response.status,
      headers: response.headers,
      text,
      json: (isJson && text !== '' ? JSON.parse(text) : undefined) as T,
    };
    // Tests that don't call the API don't load the document.
    const { undescribed } = await import('./conformance.ts');
    const wrong = undescribed(method, path, reply);
    if (wrong.length === 0) return reply;
    throw new Error(`${method} ${path} is not as in /openapi.json: ${wrong.join(', ')}`);
  };
  const get = <T = EnvelopeResponse>(path: string, headers?: Record<string, string>) =>
    call<T>('GET', path, undefined, headers);
  const submit = (path: string, body: object, headers?: Record<string, string>) =>
    call<SubmitResponse>('POST', path, JSON.stringify(body), headers);
  return {
    call,
    get,
    single: (body: object, headers?: Record<string, string>) =>
      submit('/api/v1/email', body, headers),
    bulk: (body: object, headers?: Record<string, string>) =>
      submit('/api/v1/email/bulk', body, headers),
    batch: async (batchId: string) => (await get(`/api/v1/batch/${batchId}`)).json,
    credits: async () =>
      (await get<{ balance: number; total: number; used: number }>('/api/v1/credits'))
        .json,
    /** Polls like a client until the batch is completed. */
    async completed(batchId: string): Promise<EnvelopeResponse> {
      return await eventually(async () => {
        const envelope = (await get(`/api/v1/batch/${batchId}`)).json;
        return envelope.batch.status === 'completed' ? envelope : null;
      });
    },
  };
}

/** Ends a hanging test. This is less than AVA's limit, so that the failure names the line. */
export const HANG_MS = 300_000;

/**
 * Waits for a condition. Calls the function until it returns a value other than null.
 * @param hangMs the time after which the condition is given up, in milliseconds
 */
export async function eventually<T>(
  look: () => Promise<T | null>,
  hangMs = HANG_MS,
): Promise<T> {
  const deadline = Date.now() + hangMs;
  for (;;) {
    const seen = await look();
    if (seen !== null) return seen;
    if (Date.now() > deadline)
      throw new Error(`the condition did not come true within ${hangMs / 1000} s`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Repeats commands of the Temporal CLI until a busy server has time for them. */
export async function onceServed<T>(work: () => Promise<T>): Promise<T> {
  return await eventually(async () =>
    work().catch((error: unknown) => {
      if (/context deadline exceeded/.test(String(error))) return null;
      throw error;
    }),
  );
}

/**
 * Sends raw bytes and returns the response, which ends when the server closes the connection. Most
 * callers ask for that with `Connection: close`.
 */
export function exchange(port: number, bytes: string | Uint8Array): Promise<string> {
  return new Promise((resolve) => {
    const chunks: Buffer[] = [];
    const socket = connect(port, '127.0.0.1', () => socket.write(bytes));
    socket.on('data', (chunk) => chunks.push(chunk));
    // A reset after the response ends it too.
    socket.on('error', () => {});
    // A server that neither responds nor closes fails this test and does not hang the run.
    socket.setTimeout(60_000, () => socket.destroy());
    socket.on('close', () => resolve(Buffer.concat(chunks).toString()));
  });
}
