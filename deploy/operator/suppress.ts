import { type Command, InvalidArgumentError, Option } from 'commander';
import type { ChangedBy } from '../../db/audit.ts';
import {
  addSuppression,
  listSuppressions,
  removeSuppression,
  type SuppressionTarget,
} from '../../db/privacy/suppressions.ts';
import type { SuppressionKind } from '../../db/words.ts';
import { change, newestFirst, orStdin } from './arguments.ts';
import { fields, type Report, type Run, table } from './print.ts';
import { guessWord, parseTarget } from './suppression-target.ts';

const TARGET =
  'an NPI, an address, its SHA-256 in hex, or a domain (its subdomains included); - reads it from stdin';

/** `suppress`. */
export function addSuppressCommands(program: Command, run: Run): void {
  const suppress = program
    .command('suppress')
    .description('who must not be looked up or returned, whatever any source says');
  change(
    suppress
      .command('add')
      .description('from now on: not looked up, not returned, not shown again in polls and deliveries')
      .argument('<TARGET>', TARGET, orStdin(target)),
  ).action((which: SuppressionTarget, options: ChangedBy) =>
    run(null, async (db) => {
      const isNew = await addSuppression(db, options, which);
      return report(which, isNew ? 'suppressed' : 'was suppressed already; nothing was changed');
    }),
  );
  change(
    suppress
      .command('remove')
      .description("end a suppression, an erasure's too: sources may bring the address back")
      .argument('<TARGET>', TARGET, orStdin(target)),
  ).action((which: SuppressionTarget, options: ChangedBy) =>
    run(null, async (db) => {
      const origin = await removeSuppression(db, options, which);
      const outcome =
        origin === null ? 'was not suppressed; nothing was changed' : `removed; it came from: ${origin}`;
      return { ...report(which, outcome), exitCode: origin === null ? 1 : 0 };
    }),
  );
  newestFirst(
    suppress.command('list').description('all suppressions, newest first; addresses as their SHA-256'),
  )
    .addOption(new Option('--kind <KIND>', 'only these').choices(['npi', 'email', 'domain']))
    .action(({ kind, limit }: { readonly kind?: SuppressionKind; readonly limit: number }) =>
      run(null, async (db) => {
        const data = await listSuppressions(db, kind ?? null, limit);
        const text = table(data, {
          KIND: (row) => row.kind,
          VALUE: ({ value }) => value,
          ORIGIN: ({ origin }) => origin,
          SINCE: ({ createdAt }) => createdAt,
          REASON: ({ reason }) => reason,
        });
        return { data, text };
      }),
    );
}

function target(text: string): SuppressionTarget {
  const trimmed = text.trim();
  const parsed = parseTarget(guessWord(trimmed), trimmed);
  if (parsed) return parsed;
  throw new InvalidArgumentError(`Write ${TARGET}; not a suffix such as co.uk.`);
}

function report({ kind, value }: SuppressionTarget, outcome: string): Report {
  return { data: { kind, value, outcome }, text: fields({ kind, value, outcome }) };
}
