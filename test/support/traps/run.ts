import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { POLICIES, type Policy } from '../../../activities/verification/policy.ts';
import type { EmailType } from '../../../db/words.ts';
import { loadConfig } from '../../../deploy/config/config.ts';
import { importDownload } from '../../../deploy/nppes/importer.ts';
import { temporaryFolder, withSql } from '../database.ts';
import { type EnvelopeAnswer, eventually } from '../organization.ts';
import { startStack } from '../stack.ts';
import { type Opinion, spelled, TRAPS, type Trap, writeNppes } from './set.ts';
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
  const { verifyPolicy } = configOf({ REACHER_URL: 'http://127.0.0.1' });
  const others = POLICIES.filter((policy) => policy !== verifyPolicy);
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
  readonly returned: EmailType | null;
  /** The state of its request, followed by the reason that our checks gave for the address. */
  readonly state: string;
  readonly reason: string | null;
}

const BULK = 60;

/**
 * Looks up all people of the set as a client of the whole service: PostgreSQL with an imported
 * NPPES, Temporal, the API, and a worker with the real adapters. The servers at the edge use the
 * protocols of vendors, a verifier, and a name server.
 */
export async function springTraps({ policy, hasVerifier }: Setup): Promise<Outcome[]> {
  await using opened = new AsyncDisposableStack();
  const folder = temporaryFolder((remove) => opened.defer(remove));
  const world = await startWorld(hasVerifier);
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
    lookupTimeoutMs: 900_000,
    // Few at once, because other tests need the machine too.
    lookupSlots: 16,
  });
  opened.defer(() => stack.stop());
  await writeNppes(folder);
  await importDownload({
    ...{ dataset: 'nppes', databaseUrl: stack.databaseUrl, path: folder },
    ...{ rejects: join(folder, 'rejects.csv'), actor: 'test', reason: 'test' },
    output: { line: () => {} },
  });

  const client = await stack.organization(TRAPS.length);
  const npis = TRAPS.map(({ npi }) => npi);
  const bulks = Array.from({ length: Math.ceil(npis.length / BULK) }, (_, n) =>
    npis.slice(n * BULK, (n + 1) * BULK),
  );
  const items = new Map<string, EnvelopeAnswer['data'][number]>();
  const batches = await Promise.all(bulks.map((bulk) => client.bulk({ npis: bulk })));
  for (const { json } of batches) {
    const { data } = await eventually(async () => {
      const { json: now } = await client.get(`/api/v1/batch/${json.batch_id}`, {
        prefer: 'wait=50',
      });
      return now.batch.status === 'completed' ? now : null;
    });
    for (const item of data) items.set(item.npi, item);
  }
  const reasons = await withSql(stack.databaseUrl, async (sql) => {
    const rows =
      await sql`select npi, concat_ws(' ', verdict, reason) as said from stored_emails`;
    return new Map(rows.map(({ npi, said }) => [npi, said]));
  });
  return TRAPS.map((trap) => {
    const { email, email_type, status } = items.get(trap.npi) ?? {};
    if (email && spelled(email) !== spelled(trap.email))
      throw new Error(`${email} was never named`);
    return {
      trap,
      careful: (hasVerifier ? undefined : trap.withoutVerifier) ?? trap.careful,
      returned: email ? (email_type as EmailType) : null,
      state: String(status),
      reason: reasons.get(trap.npi) ?? null,
    };
  });
}

/** Returns the deviation from a careful person's decision, or null without a deviation. */
export function mistakeIn({
  trap,
  careful,
  returned,
}: Outcome): 'returned' | 'refused' | 'type' | null {
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

/** Returns the confusion table: one line per kind, with three scores per setup. */
export function tableOf(
  runs: readonly { readonly setup: Setup; readonly outcomes: readonly Outcome[] }[],
) {
  const kinds = [...new Set(TRAPS.map(({ kind }) => kind))];
  const cellsOf = (outcomes: readonly Outcome[]) =>
    Object.values(scoresOf(outcomes)).map(({ wrong, of }) =>
      (of === 0 ? '–' : `${wrong.length}/${of}`).padStart(8),
    );
  const line = (name: string, isIn: (outcome: Outcome) => boolean) =>
    [
      name.padEnd(18),
      ...runs.map(({ outcomes }) =>
        cellsOf(outcomes.filter((one) => isIn(one))).join(''),
      ),
    ].join('  ');
  const columns = ['returned', 'refused', 'type']
    .map((name) => name.padStart(8))
    .join('');
  return [
    [
      'wrongly'.padEnd(18),
      ...runs.map(({ setup }, n) => `  ${n + 1}. ${setup.name}`.padEnd(24)),
    ].join('  '),
    [''.padEnd(18), ...runs.map(() => columns)].join('  '),
    ...kinds.map((kind) => line(kind, ({ trap }) => trap.kind === kind)),
    line('all', () => true),
  ];
}

/** Describes one mistake in a line, for people. */
export function tell(outcome: Outcome): string {
  const { trap, returned, state, reason } = outcome;
  const { who, practice, email, why } = trap;
  const done = returned
    ? `returned as ${returned}`
    : `${state}, ${reason ?? 'nothing known'}`;
  return `${email} of ${who.first} ${who.last}, ${practice} (${why}): ${done}`;
}
