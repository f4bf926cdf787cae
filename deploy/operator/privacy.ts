import { type Command, Option } from 'commander';
import { isFreeMail, registrableDomain } from '../../activities/verification/domains.ts';
import { parseAddress } from '../../activities/verification/syntax.ts';
import type { ChangedBy } from '../../db/audit.ts';
import { transaction } from '../../db/client.ts';
import {
  type AskedBy,
  type DataSubject,
  eraseSubject,
  exportSubject,
  listPrivacyRequests,
  recordPrivacyRequest,
} from '../../db/privacy/privacy.ts';
import {
  addSuppression,
  countDomains,
  hashAddress,
  listSuppressions,
  removeSuppression,
  type Suppression,
  type SuppressionTarget,
} from '../../db/privacy/suppressions.ts';
import type { SuppressionKind } from '../../db/words.ts';
import { change, lists, orStdin, parser, pastMoment } from './arguments.ts';
import { fields, json, type Run } from './print.ts';

const SUBJECT = 'an NPI, or an address; - reads it from stdin';

/** Adds `privacy`, `suppress`. */
export function addCommands(program: Command, run: Run): void {
  addSuppressCommands(program, run);
  const privacy = program
    .command('privacy')
    .description("people's rights: what is held about them, and its erasure");
  asked(privacy, 'export', 'everything held about a person, as JSON')
    .argument('<SUBJECT>', SUBJECT, orStdin(dataSubject))
    .action((subject: DataSubject, by: AskedBy) =>
      run(async (db) => {
        const data = { subject, ...(await exportSubject(db, subject)) };
        await transaction(db, (tx) => recordPrivacyRequest(tx, by, 'privacy.export', subject, {}));
        return { data, text: json(data) };
      }),
    );
  asked(privacy, 'erase', 'erase the addresses of a person, for good')
    .argument('<SUBJECT>', SUBJECT, orStdin(dataSubject))
    .option('--yes', 'do it; there is no way back')
    .action((subject: DataSubject, { yes, ...by }: AskedBy & { readonly yes?: true }) =>
      run(async (db) => {
        const counts = await eraseSubject(db, by, subject, !yes);
        const isNothing = Object.values(counts).every((count) => count === 0);
        const done = isNothing
          ? 'Nothing was left to erase.'
          : "Erased. custom_data is the customer's own and was kept.";
        const closing = yes ? done : 'Nothing was erased: add --yes to erase it for good.';
        const data = { erased: yes === true, ...counts };
        return { data, text: `${fields(counts)}\n\n${closing}`, exitCode: yes ? 0 : 1 };
      }),
    );
  lists(
    privacy
      .command('list')
      .description('the register: exports, erasures, objections, newest first'),
    run,
    'doneAt',
    (db, { limit }) => listPrivacyRequests(db, limit),
  );
}

/**
 * Adds a change whose reason must not contain an address, because the audit log is never erased.
 */
function discreet(parent: Command, name: string, description: string): Command {
  const command = change(parent, name, description);
  return command.hook('preAction', () => {
    if (command.opts<ChangedBy>().reason.includes('@'))
      command.error('error: name no address in --reason: it is kept forever');
  });
}

/**
 * Adds a change with the additional options of the register of requests. Its options are an
 * `AskedBy`.
 */
function asked(parent: Command, name: string, description: string): Command {
  return discreet(parent, name, description)
    .addOption(
      new Option('--asked-by <WHO>', 'who asked')
        .choices(['person', 'agent', 'authority'])
        .default('person'),
    )
    .option(
      '--received <WHEN>',
      'when: 24h (ago), 2026-11-20T00:00Z; now if it is not said',
      pastMoment,
      new Date(),
    );
}

const dataSubject = parser(SUBJECT, (text): DataSubject | null => {
  const trimmed = text.trim();
  if (NPI.test(trimmed)) return { npi: trimmed };
  const address = parseAddress(trimmed);
  return address && { email: address.email };
});

const TARGET =
  'an NPI, an address, its SHA-256 in hex, or a domain (its subdomains included); - reads it from stdin';

function addSuppressCommands(program: Command, run: Run): void {
  const suppress = program
    .command('suppress')
    .description('who must not be looked up or returned, whatever any source says');
  discreet(
    suppress,
    'add',
    'from now on: not looked up, not returned, not shown again in polls and deliveries',
  )
    .argument('<TARGET>', TARGET, orStdin(target))
    .option('--yes', 'also a free-mail domain, such as gmail.com')
    .action((which: SuppressionTarget, { yes, ...options }: ChangedBy & { readonly yes?: true }) =>
      run(async (db) => {
        if (!yes && isFreeMailTarget(which)) {
          const data = { ...which, suppressed: false, ...(await countDomains(db, [which.value])) };
          const closing =
            'Nothing was suppressed: this is a free-mail domain. Add --yes to suppress all of it.';
          return { data, text: `${fields(data)}\n\n${closing}`, exitCode: 1 };
        }
        const isNew = await addSuppression(db, options, which);
        return {
          ...which,
          outcome: isNew
            ? 'suppressed'
            : 'was suppressed already; it is in the register all the same',
        };
      }),
    );
  discreet(
    suppress,
    'remove',
    "end a suppression, an erasure's too: sources may bring the address back",
  )
    .argument('<TARGET>', TARGET, orStdin(target))
    .action((which: SuppressionTarget, options: ChangedBy) =>
      run(async (db) => {
        const origin = await removeSuppression(db, options, which);
        const outcome =
          origin === null
            ? 'was not suppressed; nothing was changed'
            : `removed; it came from: ${origin}`;
        return { data: { ...which, outcome }, exitCode: origin === null ? 1 : 0 };
      }),
    );
  lists<Suppression, { readonly kind?: SuppressionKind }>(
    suppress
      .command('list')
      .description('suppressions, newest first; addresses as their SHA-256')
      .addOption(new Option('--kind <KIND>', 'only these').choices(['npi', 'email', 'domain'])),
    run,
    'createdAt',
    (db, { kind, limit }) => listSuppressions(db, kind ?? null, limit),
  );
}

const target = parser(`${TARGET}; not a suffix such as co.uk`, (text) => {
  const trimmed = text.trim();
  return TARGETS[guessWord(trimmed)](trimmed);
});

const NPI = /^[0-9]{10}$/;
const SHA256 = /^[0-9a-f]{64}$/i;

export type TargetWord = 'npi' | 'sha256' | 'email' | 'domain';

/**
 * Parsers for the kinds of targets. Each takes a trimmed text and returns null if it is not of its
 * kind. An address is hashed here, so that no later code sees the addresses on a list.
 */
export const TARGETS: Readonly<Record<TargetWord, (text: string) => SuppressionTarget | null>> = {
  npi: (text) => (NPI.test(text) ? { kind: 'npi', value: text } : null),
  sha256: (text) => (SHA256.test(text) ? { kind: 'email', value: text.toLowerCase() } : null),
  email(text) {
    const address = parseAddress(text);
    return address && { kind: 'email', value: hashAddress(address.email) };
  },
  domain(text) {
    const domain = parseAddress(`x@${text}`)?.domain;
    // Suppressing `com` or `co.uk` would hide a whole country.
    return domain === undefined || isSuffix(domain) ? null : { kind: 'domain', value: domain };
  },
};

/** Returns whether a suppression would hide the personal addresses of very many people. */
export function isFreeMailTarget({ kind, value }: SuppressionTarget): boolean {
  return kind === 'domain' && isFreeMail(value);
}

/**
 * Guesses the kind of a target. Ten digits are an NPI, 64 hex digits are the SHA-256 of an address,
 * and a text with `@` is an address. Anything else is a domain.
 */
export function guessWord(text: string): TargetWord {
  if (NPI.test(text)) return 'npi';
  if (SHA256.test(text)) return 'sha256';
  return text.includes('@') ? 'email' : 'domain';
}

/**
 * Returns whether a domain is a public suffix. An unknown suffix doesn't count, because it has no
 * mailboxes and suppressing it does no harm.
 */
function isSuffix(domain: string): boolean {
  return registrableDomain(domain) === null && registrableDomain(`x.${domain}`) !== null;
}
