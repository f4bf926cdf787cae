import { type Command, Option } from 'commander';
import { isFreeMail, registrableDomain } from '../../activities/verification/domains.ts';
import { parseAddress } from '../../activities/verification/syntax.ts';
import { bare, readNpi } from '../../api/files/cell.ts';
import { type Database, transaction } from '../../db/connection/client.ts';
import type { ChangedBy } from '../../db/operations/audit.ts';
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
import {
  type Confirmed,
  change,
  confirmed,
  exitCodeOf,
  lists,
  NPI,
  orStdin,
  parser,
  pastMoment,
} from './arguments.ts';
import { fields, json, leading, type Report, type Run } from './print.ts';

const SUBJECT = 'an NPI or an email address; - reads it from stdin';

/** Adds the commands `privacy` and `suppress`. */
export function addCommands(program: Command, run: Run): void {
  addSuppressCommands(program, run);
  const privacy = program
    .command('privacy')
    .description('export and erase the data about a person');
  asked(privacy, 'export', 'print all data about a person, as JSON')
    .argument('<SUBJECT>', SUBJECT, orStdin(dataSubject))
    .action((subject: DataSubject, by: AskedBy) =>
      run((db) => exportData(db, by, subject)),
    );
  const erase = asked(privacy, 'erase', 'erase the addresses of a person permanently');
  confirmed(erase, 'erase them; this cannot be undone')
    .argument('<SUBJECT>', SUBJECT, orStdin(dataSubject))
    .action((subject: DataSubject, options: EraseOptions) =>
      run((db) => eraseData(db, options, subject)),
    );
  lists(
    privacy
      .command('list')
      .description('list the register of exports, erasures and objections, newest first'),
    run,
    'doneAt',
    (db, { limit }) => listPrivacyRequests(db, limit),
    (one) => leading(one, ['doneAt', 'kind', 'subject']),
  );
}

async function exportData(
  db: Database,
  by: AskedBy,
  subject: DataSubject,
): Promise<Report> {
  const data = { subject, ...(await exportSubject(db, subject)) };
  await transaction(db, (tx) =>
    recordPrivacyRequest(tx, by, 'privacy.export', subject, {}),
  );
  return { data, parts: [json(data)] };
}

type EraseOptions = AskedBy & Confirmed;

async function eraseData(
  db: Database,
  options: EraseOptions,
  subject: DataSubject,
): Promise<Report> {
  const { yes = false } = options;
  const counts = await eraseSubject(db, options, subject, !yes);
  const closing = closingOf(yes, Object.values(counts));
  return {
    data: { erased: yes, ...counts },
    parts: [fields(counts), closing],
    exitCode: exitCodeOf(options),
  };
}

function closingOf(isErased: boolean, counts: readonly number[]): string {
  if (!isErased) {
    return 'Nothing was erased: add --yes to erase it for good.';
  }
  if (counts.every((count) => count === 0)) {
    return 'There was nothing to erase.';
  }
  return "Erased. custom_data was kept, because it is the customer's own.";
}

/**
 * Adds a command whose `--reason` must not contain an email address, because the audit log is never
 * erased.
 */
function discreet(parent: Command, name: string, description: string): Command {
  const command = change(parent, name, description);
  return command.hook('preAction', () => {
    if (!command.opts<ChangedBy>().reason.includes('@')) return;
    command.error(
      'error: --reason contains an address, but is kept forever; leave it out',
    );
  });
}

/**
 * Adds a command that is recorded in the register of privacy requests. Its options say when the
 * request arrived and from whom.
 */
function asked(parent: Command, name: string, description: string): Command {
  return discreet(parent, name, description)
    .addOption(
      new Option('--asked-by <WHO>', 'who made the request')
        .choices(['person', 'agent', 'authority'])
        .default('person'),
    )
    .addOption(
      new Option(
        '--received <WHEN>',
        'when the request arrived, such as 24h (ago) or 2026-11-20T00:00Z',
      )
        .argParser(pastMoment)
        .default(new Date(), 'now'),
    );
}

const dataSubject = parser(SUBJECT, (text): DataSubject | null => {
  const value = bare(text);
  // A customer may have submitted an NPI with a wrong check digit.
  const npi = NPI.test(value) ? value : readNpi(value).npi;
  if (npi !== null) return { npi };
  const address = parseAddress(value);
  if (address === null) return null;
  return { email: address.email };
});

const TARGET =
  'an NPI, an email address, the SHA-256 of an address in hex, or a domain (with its subdomains); - reads it from stdin';

const ALREADY = 'was suppressed already; the request was added to the register';

function addSuppressCommands(program: Command, run: Run): void {
  const suppress = program
    .command('suppress')
    .description('manage the list of people who must not be looked up or returned');
  discreet(
    suppress,
    'add',
    'from now on, neither look up nor return a person, an address, or a domain',
  )
    .argument('<TARGET>', TARGET, orStdin(target))
    .option('--yes', 'also suppress a free-mail domain, such as gmail.com')
    .action((which: SuppressionTarget, options: SuppressOptions) =>
      run((db) => addTarget(db, options, which)),
    );
  discreet(
    suppress,
    'remove',
    'end a suppression, even one from an erasure; vendors may then return the address again',
  )
    .argument('<TARGET>', TARGET, orStdin(storedTarget))
    .action((which: SuppressionTarget, by: ChangedBy) =>
      run((db) => removeTarget(db, by, which)),
    );
  lists<Suppression, { readonly kind?: SuppressionKind }>(
    suppress
      .command('list')
      .description('list suppressions, newest first; addresses as their SHA-256')
      .addOption(
        new Option('--kind <KIND>', 'only this kind').choices(['npi', 'email', 'domain']),
      ),
    run,
    'createdAt',
    (db, { kind, limit }) => listSuppressions(db, kind ?? null, limit),
  );
}

interface SuppressOptions extends ChangedBy {
  readonly yes?: true;
}

async function addTarget(
  db: Database,
  { yes, ...by }: SuppressOptions,
  which: SuppressionTarget,
): Promise<object> {
  if (!yes && isFreeMailTarget(which)) {
    return await unconfirmed(db, which);
  }
  const isNew = await addSuppression(db, by, which);
  return { ...which, outcome: isNew ? 'suppressed' : ALREADY };
}

/**
 * Returns a report for a free-mail domain that was not suppressed because `--yes` is missing. The
 * report says how much the suppression would hide.
 */
async function unconfirmed(db: Database, which: SuppressionTarget): Promise<Report> {
  const reach = await countDomains(db, [which.value]);
  const data = { ...which, suppressed: false, ...reach };
  const closing =
    'Nothing was suppressed: this is a free-mail domain. Add --yes to suppress all of it.';
  return { data, parts: [fields(data), closing], exitCode: 1 };
}

async function removeTarget(
  db: Database,
  by: ChangedBy,
  which: SuppressionTarget,
): Promise<Report> {
  const origin = await removeSuppression(db, by, which);
  if (origin === null) {
    const outcome = 'was not suppressed; nothing was changed';
    return { data: { ...which, outcome }, exitCode: 1 };
  }
  return { data: { ...which, outcome: `removed; it came from: ${origin}` } };
}

const target = parser(
  `${TARGET}; not a mistyped NPI, and not a suffix such as co.uk`,
  (text) => {
    const value = bare(text);
    return TARGETS[guessWord(value)](value);
  },
);

/**
 * Parses the target of a stored suppression, in the form in which `suppress list` shows it. Earlier
 * imports also stored mistyped NPIs, and NPIs that they had read as domains.
 */
const storedTarget = parser(TARGET, (text) => {
  const value = bare(text);
  if (NPI.test(value)) return { kind: 'npi', value };
  const domain = domainOf(value);
  if (domain !== null && registrableDomain(domain) === null) {
    return { kind: 'domain', value: domain };
  }
  return TARGETS[guessWord(value)](value);
});

const SHA256 = /^[0-9a-f]{64}$/i;

export type TargetWord = 'npi' | 'sha256' | 'email' | 'domain';

/**
 * A parser for each kind of target. It gets a bare text, and returns null if the text is not of
 * this kind. The parser of email addresses returns only a hash, so that no other code handles the
 * address.
 */
export const TARGETS: Readonly<
  Record<TargetWord, (text: string) => SuppressionTarget | null>
> = {
  npi(text) {
    const { npi } = readNpi(text);
    return npi === null ? null : { kind: 'npi', value: npi };
  },
  sha256(text) {
    if (!SHA256.test(text)) return null;
    return { kind: 'email', value: text.toLowerCase() };
  },
  email(text) {
    const address = parseAddress(text);
    if (address === null) return null;
    return { kind: 'email', value: hashAddress(address.email) };
  },
  domain(text) {
    const domain = domainOf(text);
    // Without a public suffix, it is a name or a number that the objection meant. Suppressing a
    // suffix such as `com` or `co.uk` would hide all domains below it.
    if (domain === null || registrableDomain(domain) === null) {
      return null;
    }
    return { kind: 'domain', value: domain };
  },
};

function domainOf(text: string): string | null {
  return parseAddress(`x@${text}`)?.domain ?? null;
}

/**
 * Returns true if the target is a free-mail domain. Suppressing it would hide the addresses of very
 * many people.
 */
export function isFreeMailTarget({ kind, value }: SuppressionTarget): boolean {
  return kind === 'domain' && isFreeMail(value);
}

/** Matches a text without letters, except the exponent of a number such as 2.0E+09. */
const NUMBER = /^\P{L}*(?:e\P{L}*)?$/iu;

/**
 * Guesses the kind of a target. 64 hex digits are the SHA-256 of an address, and a text with `@` is
 * an address. A number is an NPI, even if it is mistyped. Anything else is a domain.
 */
export function guessWord(text: string): TargetWord {
  if (SHA256.test(text)) return 'sha256';
  if (text.includes('@')) return 'email';
  if (readNpi(text).npi !== null || NUMBER.test(text)) return 'npi';
  return 'domain';
}
