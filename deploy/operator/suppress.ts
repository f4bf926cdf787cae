import { type Command, InvalidArgumentError, Option } from 'commander';
import { registrableDomain } from '../../activities/verification/domains.ts';
import { parseAddress } from '../../activities/verification/syntax.ts';
import type { ChangedBy } from '../../db/audit.ts';
import {
  addSuppression,
  hashAddress,
  listSuppressions,
  removeSuppression,
  type SuppressionTarget,
} from '../../db/privacy/suppressions.ts';
import type { SuppressionKind } from '../../db/words.ts';
import { change, newestFirst, orStdin } from './arguments.ts';
import { plain, type Run } from './print.ts';

const TARGET =
  'an NPI, an address, its SHA-256 in hex, or a domain (its subdomains included); - reads it from stdin';

/** `suppress`. */
export function addSuppressCommands(program: Command, run: Run): void {
  const suppress = program
    .command('suppress')
    .description('who must not be looked up or returned, whatever any source says');
  change(suppress, 'add', 'from now on: not looked up, not returned, not shown again in polls and deliveries')
    .argument('<TARGET>', TARGET, orStdin(target))
    .action((which: SuppressionTarget, options: ChangedBy) =>
      run(null, async (db) => {
        const isNew = await addSuppression(db, options, which);
        return plain({
          ...which,
          outcome: isNew ? 'suppressed' : 'was suppressed already; nothing was changed',
        });
      }),
    );
  change(suppress, 'remove', "end a suppression, an erasure's too: sources may bring the address back")
    .argument('<TARGET>', TARGET, orStdin(target))
    .action((which: SuppressionTarget, options: ChangedBy) =>
      run(null, async (db) => {
        const origin = await removeSuppression(db, options, which);
        const outcome =
          origin === null ? 'was not suppressed; nothing was changed' : `removed; it came from: ${origin}`;
        return { ...plain({ ...which, outcome }), exitCode: origin === null ? 1 : 0 };
      }),
    );
  newestFirst(
    suppress.command('list').description('all suppressions, newest first; addresses as their SHA-256'),
  )
    .addOption(new Option('--kind <KIND>', 'only these').choices(['npi', 'email', 'domain']))
    .action(({ kind, limit }: { readonly kind?: SuppressionKind; readonly limit: number }) =>
      run(null, async (db) => plain(await listSuppressions(db, kind ?? null, limit))),
    );
}

function target(text: string): SuppressionTarget {
  const trimmed = text.trim();
  const parsed = parseTarget(guessWord(trimmed), trimmed);
  if (parsed) return parsed;
  throw new InvalidArgumentError(`Write ${TARGET}; not a suffix such as co.uk.`);
}

/** How a value may be given: an address in clear, or as its SHA-256. */
export const TARGET_WORDS = ['npi', 'email', 'sha256', 'domain'] as const;
export type TargetWord = (typeof TARGET_WORDS)[number];

/**
 * Ten digits are an NPI, 64 hex digits an address's SHA-256, anything with an @ an address; the rest is a domain.
 * @param text without space around it
 */
export function guessWord(text: string): TargetWord {
  if (/^[0-9]{10}$/.test(text)) return 'npi';
  if (/^[0-9a-f]{64}$/i.test(text)) return 'sha256';
  return text.includes('@') ? 'email' : 'domain';
}

/**
 * An address becomes its hash here: beyond this point nobody can read whom a list names.
 * @returns null if the text isn't of that kind
 */
export function parseTarget(word: TargetWord, text: string): SuppressionTarget | null {
  switch (word) {
    case 'npi':
      return /^[0-9]{10}$/.test(text) ? { kind: 'npi', value: text } : null;
    case 'sha256':
      return /^[0-9a-f]{64}$/i.test(text) ? { kind: 'email', value: text.toLowerCase() } : null;
    case 'email': {
      const address = parseAddress(text);
      return address && { kind: 'email', value: hashAddress(address.email) };
    }
    case 'domain': {
      const domain = parseAddress(`x@${text}`)?.domain;
      // `com` or `co.uk` would silence a whole country.
      return domain === undefined || isSuffix(domain) ? null : { kind: 'domain', value: domain };
    }
    default:
      return word satisfies never;
  }
}

/** Domains under a suffix that does not exist may be suppressed: nobody is reached there anyway. */
function isSuffix(domain: string): boolean {
  return registrableDomain(domain) === null && registrableDomain(`x.${domain}`) !== null;
}
