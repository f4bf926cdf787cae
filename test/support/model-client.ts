import { createHash } from 'node:crypto';
import type { Sql } from 'postgres';
import { adjustCredits } from '../../db/accounts/credits.ts';
import {
  authenticate,
  issueKey,
  parseApiKey,
  rotateKey,
} from '../../db/accounts/keys.ts';
import { createOrganization } from '../../db/accounts/organizations.ts';
import type { Database } from '../../db/connection/client.ts';
import type { settle } from '../../db/requests/settle.ts';
import type { submit } from '../../db/requests/submit.ts';
import {
  type Call,
  MODEL_RULES,
  type ModelState,
  meaningOf,
  type RequestName,
  type SubmitCall,
} from './model.ts';
import { acceptedIds, grant, joinLookups } from './organization.ts';
import { storeEmail } from './stored.ts';

/** The functions under test: the real ones, or copies with a planted bug. */
export interface Ledger {
  readonly submit: typeof submit;
  readonly settle: typeof settle;
}

/** The real service, as the calls of one sequence use it. */
export interface ModelClient {
  readonly db: Database;
  readonly sql: Sql;
  readonly ledger: Ledger;
  readonly organizationIds: readonly string[];
  readonly keys: Map<string, { readonly keyId: string; readonly apiKey: string }>;
  readonly batches: Map<
    string,
    { readonly batchId: string; readonly requestIds: string[]; readonly response: string }
  >;
  /** NPIs of ten digits that no other sequence uses. */
  readonly npis: readonly string[];
}

const BY = { actor: 'model', reason: 'test' };

/** Opens one organization per entry of `credits`, each with a key. */
export async function openModelClient(
  on: Pick<ModelClient, 'db' | 'sql' | 'ledger' | 'npis'>,
  credits: readonly number[],
): Promise<ModelClient> {
  const keys: ModelClient['keys'] = new Map();
  const organizationIds = await Promise.all(
    credits.map(async (amount, index) => {
      const { id } = await createOrganization(on.db, BY, 'Model');
      if (amount > 0) await grant(on.db, id, amount);
      const issued = await issueKey(on.db, BY, id, 'model');
      keys.set(`key ${index}`, { keyId: issued.id, apiKey: issued.apiKey });
      return id;
    }),
  );
  return { ...on, organizationIds, keys, batches: new Map() };
}

/**
 * Performs one call on the real service.
 * @returns a function that returns the caller's result in the model's words, once the concurrent
 * calls have ended too
 */
export async function performCall(
  client: ModelClient,
  call: Call,
): Promise<() => string> {
  try {
    return await perform(client, call);
  } catch (error) {
    const code =
      error instanceof Error && 'code' in error ? String(error.code) : String(error);
    return () => code;
  }
}

async function perform(client: ModelClient, call: Call): Promise<() => string> {
  const { db } = client;
  switch (call.kind) {
    case 'submit':
      return await performSubmit(client, call);
    case 'begin': {
      await joinLookups(db, [requestIdOf(client, call.request)]);
      return () => 'begun';
    }
    case 'settle': {
      const requestId = requestIdOf(client, call.request);
      const { status, settledNow } = await client.ledger.settle(
        db,
        requestId,
        call.end,
        'model',
        MODEL_RULES,
      );
      return () => `${status} ${settledNow ? 'now' : 'before'}`;
    }
    case 'store': {
      const { npi, email, emailType } = call;
      const lastValidatedAt = new Date(Date.now() - call.ageMs);
      await storeEmail(db, { npi, email, emailType, lastValidatedAt, source: 'model' });
      return () => 'stored';
    }
    case 'grant':
      await grant(db, organizationIdOf(client, call.organization), call.amount);
      return () => 'funded';
    case 'adjust':
      await adjustCredits(
        db,
        BY,
        organizationIdOf(client, call.organization),
        call.amount,
      );
      return () => 'funded';
    case 'rotate': {
      const { issued } = await rotateKey(db, BY, keyOf(client, call.key).keyId, 0);
      client.keys.set(call.name, { keyId: issued.id, apiKey: issued.apiKey });
      return () => 'rotated';
    }
    default:
      return call satisfies never;
  }
}

async function performSubmit(
  client: ModelClient,
  call: SubmitCall,
): Promise<() => string> {
  const hash = parseApiKey(keyOf(client, call.key).apiKey);
  if (!hash) throw new Error('an issued key cannot be parsed');
  const owner = await authenticate(client.db, hash);
  if (owner.kind !== 'active') return () => owner.kind;
  const { submittedAs, requestedType, npis, idempotencyKey } = call;
  const idempotency =
    idempotencyKey === null
      ? null
      : {
          key: idempotencyKey,
          method: 'POST',
          path: submittedAs,
          fingerprint: createHash('sha256').update(meaningOf(call)).digest(),
        };
  const command = {
    organizationId: owner.organizationId,
    apiKeyId: owner.keyId,
    submittedAs,
    requestedType,
    npis,
    webhook: null,
    customData: null,
    outcomes: null,
    isOutcomeForced: false,
    idempotency,
  };
  const outcome = await client.ledger.submit(client.db, command, MODEL_RULES);
  switch (outcome.kind) {
    case 'accepted': {
      client.batches.set(call.name, {
        ...acceptedIds(outcome),
        response: outcome.response,
      });
      return () => `accepted ${JSON.parse(outcome.response).status}`;
    }
    case 'repeated':
      return () => {
        const [name] =
          [...client.batches].find(([, { response }]) => response === outcome.response) ??
          [];
        return `repeated ${name}`;
      };
    case 'insufficient':
      return () => `insufficient ${outcome.required} of ${outcome.available}`;
    default:
      return () => outcome.kind;
  }
}

/**
 * Returns the state of the sequence's organizations in the database as text. It equals the text of
 * `viewModel` if both agree.
 */
export async function viewDatabase({
  sql,
  organizationIds,
  batches,
}: ModelClient): Promise<string[]> {
  const ids = [...organizationIds];
  const rows = await sql<{ line: string }[]>`
    with own as (
      select r.* from batches b join requests r on r.batch_id = b.id where b.organization_id = any(${ids})
    )
    select format('organization %s: total %s available %s held %s used %s',
             organization_id, total, available, held, used) as line
      from credit_balances where organization_id = any(${ids})
    union all
    select format('organization %s paid %s %s: %s %s', e.organization_id, e.npi, e.email_type, r.batch_id, r.position)
      from entitlements e join requests r on r.id = e.request_id where e.organization_id = any(${ids})
    union all
    select format('batch %s of %s: %s %s of %s', id, organization_id, status, completed_count, total)
      from batches where organization_id = any(${ids})
    union all
    select format('request %s %s: %s %s replayed %s credits %s %s', batch_id, position, npi, status,
             case when replayed then 'true' else 'false' end, credits_used, coalesce(email, 'null'))
      from own`;
  const names = new Map<string, string>([
    ...organizationIds.map((id, index) => [id, String(index)] as const),
    ...[...batches].map(([name, { batchId }]) => [batchId, name] as const),
  ]);
  return rows
    .map(({ line }) =>
      line.replace(/(?:org|bat)_[0-9a-z]{26}/g, (id) => names.get(id) ?? id),
    )
    .sort();
}

/**
 * Lets time pass by moving all data of the sequence into the past. The ledger and final requests
 * reject any change, so their triggers are off in this transaction.
 */
export async function passTime(
  { sql, organizationIds, npis }: ModelClient,
  ms: number,
): Promise<void> {
  const ids = [...organizationIds];
  const gone = sql`make_interval(secs => ${ms / 1000}::float8)`;
  await sql.begin(async (tx) => {
    await tx`set local session_replication_role = replica`;
    await tx`
      with a as (update entitlements set charged_at = charged_at - ${gone} where organization_id = any(${ids})),
           b as (update ledger_entries set created_at = created_at - ${gone} where organization_id = any(${ids})),
           c as (update idempotency_keys set created_at = created_at - ${gone}, expires_at = expires_at - ${gone}
                  where organization_id = any(${ids})),
           d as (update requests set accepted_at = accepted_at - ${gone}, deadline_at = deadline_at - ${gone},
                        started_at = started_at - ${gone}, settled_at = settled_at - ${gone},
                        email_last_validated_at = email_last_validated_at - ${gone}
                  where batch_id in (select id from batches where organization_id = any(${ids}))),
           e as (update batches set created_at = created_at - ${gone}, updated_at = updated_at - ${gone},
                        deadline_at = deadline_at - ${gone}
                  where organization_id = any(${ids}))
      update stored_emails set last_validated_at = last_validated_at - ${gone} where npi = any(${[...npis]})`;
  });
}

function requestIdOf({ batches }: ModelClient, { batch, position }: RequestName): string {
  const id = batches.get(batch)?.requestIds[position];
  if (id === undefined) throw new Error(`no request ${batch} ${position} was accepted`);
  return id;
}

function keyOf({ keys }: ModelClient, name: string) {
  const key = keys.get(name);
  if (!key) throw new Error(`no key ${name} was issued`);
  return key;
}

function organizationIdOf({ organizationIds }: ModelClient, index: number): string {
  const id = organizationIds[index];
  if (id === undefined) throw new Error(`no organization ${index} was opened`);
  return id;
}

/** Returns the expected state of the database as text. */
export function viewModel({ organizations, batches }: ModelState): string[] {
  const lines = organizations.flatMap(({ available, held, used, charges }, index) => [
    `organization ${index}: total ${available + held + used} available ${available} held ${held} used ${used}`,
    // A later charge for the same NPI and type replaces the earlier one.
    ...new Map(
      charges.map(({ npi, emailType, request }) => {
        return [
          `${npi} ${emailType}`,
          `organization ${index} paid ${npi} ${emailType}: ${request}`,
        ];
      }),
    ).values(),
  ]);
  for (const [name, { organization, requests }] of Object.entries(batches)) {
    const settled = requests.filter(
      ({ status }) => status !== 'accepted' && status !== 'in-progress',
    ).length;
    const status = settled === requests.length ? 'completed' : 'in-progress';
    lines.push(
      `batch ${name} of ${organization}: ${status} ${settled} of ${requests.length}`,
    );
    for (const [position, one] of requests.entries()) {
      lines.push(
        `request ${name} ${position}: ${one.npi} ${one.status} replayed ${one.replayed} credits ${one.credits} ${one.email}`,
      );
    }
  }
  return lines.sort();
}

/** Returns the instants at which something becomes possible or impossible. */
export function boundaries({ directory, organizations, batches }: ModelState): number[] {
  return [
    ...directory.map(({ at }) => at + MODEL_RULES.freshnessMs),
    ...organizations.flatMap(({ charges, replies }) => [
      ...charges.map(({ at }) => at + MODEL_RULES.replayMs),
      ...Object.values(replies).map(({ until }) => until),
    ]),
    ...Object.values(batches).map(({ deadline }) => deadline),
  ];
}
