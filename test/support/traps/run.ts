import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { POLICIES, type Policy } from '../../../activities/verification/policy.ts';
import type { EmailType } from '../../../db/words.ts';
import { loadConfig } from '../../../deploy/config/config.ts';
import { policyOf } from '../../../deploy/config/sources.ts';
import { importDownload } from '../../../deploy/nppes/importer.ts';
import { temporaryFolder, withSql } from '../database.ts';
import { type EnvelopeResponse, eventually } from '../organization.ts';
import { startStack } from '../stack.ts';
import {
  addressOf,
  colleagues,
  type Opinion,
  spelled,
  type Trap,
  writeNppes,
} from './set.ts';
import { startWorld } from './world.ts';

/** A configuration of the service. */
export interface Setup {
  readonly name: string;
  /** Null for the default. */
  readonly policy: Policy | null;
  readonly hasVerifier: boolean;
}

export const DEFAULT: Setup = { name: 'default', policy: null, hasVerifier: true };

/** Returns every policy with a verifier, each once, and the default policy without one. */
export function everySetup(): Setup[] {
  const usual = policyOf(configOf({}), 1);
  const others = POLICIES.filter((policy) => policy !== usual);
  return [
    { name: 'default, no verifier', policy: null, hasVerifier: false },
    DEFAULT,
    ...others.map((policy) => ({ name: policy, policy, hasVerifier: true })),
  ];
}

const configOf = (environment: Readonly<Record<string, string>>) =>
  loadConfig({ DATABASE_URL: 'postgres://127.0.0.1/none', ...environment });

/** The result of one trap. */
export interface Outcome {
  readonly trap: Trap;
  readonly careful: Opinion;
  /** Type of the returned address. */
  readonly returned: EmailType | null;
  /** The returned address, if it is not the one that a careful person would return. */
  readonly other: string | null;
  /** The state of its request, followed by the reason that our checks gave for the address. */
  readonly state: string;
  readonly reason: string | null;
}

const BULK = 60;
/** The time for all lookups of one run. A busy machine needs several minutes. */
export const MAX_RUN_MS = 900_000;

/**
 * Looks up all people of the traps as a client of the whole service: PostgreSQL with an imported
 * NPPES, Temporal, the API, and a worker with the real adapters. The servers at the edge use the
 * protocols of vendors, a verifier, and a name server.
 */
export async function springTraps(
  traps: readonly Trap[],
  { policy, hasVerifier }: Setup,
): Promise<Outcome[]> {
  await using opened = new AsyncDisposableStack();
  const folder = temporaryFolder((remove) => opened.defer(remove));
  const world = await startWorld(traps, hasVerifier);
  opened.defer(() => world.close());
  const file = join(folder, 'sources.json');
  writeFileSync(file, JSON.stringify(world.sources));
  const set = policy === null ? {} : { VERIFY_POLICY: policy };
  const { access, dnsServers, sourcesFile, verifyPolicy } = configOf({
    ...world.environment,
    ...set,
    SOURCES_FILE: file,
  });
  const stack = await startStack({
    ...{ access, dnsServers, sourcesFile, verifyPolicy },
    lookupTimeoutMs: MAX_RUN_MS,
    // Runs few at the same time, because other tests need the machine too.
    lookupSlots: 16,
  });
  opened.defer(() => stack.stop());
  await writeNppes(traps, folder);
  await importDownload({
    ...{ dataset: 'nppes', databaseUrl: stack.databaseUrl, path: folder },
    ...{ rejects: join(folder, 'rejects.csv'), actor: 'test', reason: 'test' },
    output: { line: () => {} },
  });
  await storeColleagues(stack.databaseUrl);

  const client = await stack.organization(traps.length);
  const npis = traps.map(({ npi }) => npi);
  const bulks = Array.from({ length: Math.ceil(npis.length / BULK) }, (_, n) =>
    npis.slice(n * BULK, (n + 1) * BULK),
  );
  const items = new Map<string, EnvelopeResponse['data'][number]>();
  const batches = await Promise.all(bulks.map((bulk) => client.bulk({ npis: bulk })));
  for (const { json } of batches) {
    const { data } = await eventually(async () => {
      const { json: now } = await client.get(`/api/v1/batch/${json.batch_id}`, {
        prefer: 'wait=50',
      });
      return now.batch.status === 'completed' ? now : null;
    }, MAX_RUN_MS);
    for (const item of data) items.set(item.npi, item);
  }
  const reasons = await withSql(stack.databaseUrl, async (sql) => {
    const rows =
      await sql`select npi, concat_ws(' ', verdict, reason) as said from stored_emails`;
    return new Map(rows.map(({ npi, said }) => [npi, said]));
  });
  return traps.map((trap) => {
    const careful = carefulDecision(trap, hasVerifier);
    const reason = reasons.get(trap.npi) ?? null;
    return outcomeOf(trap, careful, items.get(trap.npi), reason);
  });
}

/** Stores the colleagues' addresses in the directory, as if a verifier had found their mailboxes. */
async function storeColleagues(url: string): Promise<void> {
  await withSql(url, async (sql) => {
    const rows = colleagues().map(({ npi, email }) => ({ npi, email }));
    const known = { source: 'rocketreach', verdict: 'valid', email_type: 'professional' };
    const valid = rows.map((row) => ({
      ...row,
      ...known,
      last_validated_at: new Date(),
    }));
    await sql`insert into stored_emails ${sql(valid)}`;
    const checks = rows.map((row) => ({
      ...row,
      kind: 'verifier',
      source: 'reacher',
      verdict: 'valid',
    }));
    await sql`insert into email_checks ${sql(checks)}`;
  });
}

function carefulDecision(trap: Trap, hasVerifier: boolean): Opinion {
  if (hasVerifier || trap.withoutVerifier === undefined) return trap.careful;
  return trap.withoutVerifier;
}

function outcomeOf(
  trap: Trap,
  careful: Opinion,
  item: EnvelopeResponse['data'][number] | undefined,
  reason: string | null,
): Outcome {
  const state = String(item?.status);
  if (!item?.email) return { trap, careful, returned: null, other: null, state, reason };
  const returned = item.email_type as EmailType;
  const other = spelled(item.email) === addressOf(trap) ? null : item.email;
  return { trap, careful, returned, other, state, reason };
}

/** Returns the deviation from a careful person's decision, or null without a deviation. */
export function mistakeIn({
  trap,
  careful,
  returned,
  other,
}: Outcome): 'returned' | 'refused' | 'type' | null {
  if (other !== null) return 'returned';
  if (careful === 'refuse') return returned ? 'returned' : null;
  if (!returned) return 'refused';
  return returned === trap.type ? null : 'type';
}

/** The wrong decisions, and the number of all decisions. */
export interface Score {
  readonly wrong: readonly Outcome[];
  readonly of: number;
}

/**
 * Scores bad addresses that were returned, good ones that were not, and wrong types of returned
 * good ones.
 */
export function scoresOf(
  outcomes: readonly Outcome[],
): Readonly<Record<'returned' | 'refused' | 'type', Score>> {
  const bad = outcomes.filter(({ careful }) => careful === 'refuse');
  const good = outcomes.filter(({ careful }) => careful === 'return');
  const wrong = (mistake: string) => outcomes.filter((one) => mistakeIn(one) === mistake);
  const refused = wrong('refused');
  return {
    returned: { wrong: wrong('returned'), of: bad.length },
    refused: { wrong: refused, of: good.length },
    type: { wrong: wrong('type'), of: good.length - refused.length },
  };
}

/**
 * Returns the confusion table of a setup: one line with three scores per kind, and below them the
 * scores of all kinds, also in percent.
 */
export function tableOf(outcomes: readonly Outcome[]): string[] {
  const kinds = [...new Set(outcomes.map(({ trap }) => trap.kind))];
  const ofKind = (kind: string) => outcomes.filter(({ trap }) => trap.kind === kind);
  return [
    lineOf('wrongly', ['returned', 'refused', 'type']),
    ...kinds.map((kind) => scoreLineOf(kind, ofKind(kind), shareOf)),
    scoreLineOf('all', outcomes, shareOf),
    scoreLineOf('percent', outcomes, percentOf),
  ];
}

function scoreLineOf(
  name: string,
  outcomes: readonly Outcome[],
  cellOf: (score: Score) => string,
): string {
  return lineOf(name, Object.values(scoresOf(outcomes)).map(cellOf));
}

function lineOf(name: string, cells: readonly string[]): string {
  return [name.padEnd(24), ...cells.map((cell) => cell.padStart(9))].join('');
}

function shareOf({ wrong, of }: Score): string {
  return of === 0 ? '–' : `${wrong.length}/${of}`;
}

function percentOf({ wrong, of }: Score): string {
  return of === 0 ? '–' : ((100 * wrong.length) / of).toFixed(1);
}

/** Describes one mistake in a line, for people. */
export function tell(outcome: Outcome): string {
  const { trap, returned, other, state, reason } = outcome;
  const { who, practice, email, why } = trap;
  const address = other === null ? '' : `${other} `;
  const done = returned
    ? `${address}returned as ${returned}`
    : `${state}, ${reason ?? 'nothing known'}`;
  return `${email} of ${who.first} ${who.last}, ${practice} (${why}): ${done}`;
}
