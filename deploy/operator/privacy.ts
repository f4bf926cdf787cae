import { type Command, InvalidArgumentError, Option } from 'commander';
import { parseAddress } from '../../activities/verification/syntax.ts';
import { transaction } from '../../db/client.ts';
import {
  type AskedBy,
  type DataSubject,
  type Erasure,
  eraseSubject,
  exportSubject,
  listPrivacyRequests,
  recordPrivacyRequest,
} from '../../db/privacy/privacy.ts';
import { change, newestFirst, orStdin, pastMoment } from './arguments.ts';
import { fields, json, plain, type Report, type Run } from './print.ts';

const SUBJECT = 'an NPI, or an address; - reads it from stdin';

const HELP = `
Removes the addresses from the directory, its evidence, answers that were given (they stay completed and paid) and
excerpts of what receivers answered. Suppresses the NPI, if one is given, and the hash of each address, so that no
import and no vendor brings one back. Kept: what was charged, custom_data (the customer's own), and the public NPPES
record without its endpoints of these addresses. Without --yes it only counts what it would remove, and ends with 1.`;

/** `privacy`. */
export function addPrivacyCommands(program: Command, run: Run): void {
  const privacy = program
    .command('privacy')
    .description("people's rights: what is held about them, and its erasure");
  asked(privacy, 'export', 'everything held about a person, as JSON')
    .argument('<SUBJECT>', SUBJECT, orStdin(dataSubject))
    .action((subject: DataSubject, by: AskedBy, command: Command) => {
      refuseAddress(by, command);
      return run(null, async (db) => {
        const data = { subject, ...(await exportSubject(db, subject)) };
        await transaction(db, (tx) => recordPrivacyRequest(tx, by, 'privacy.export', subject, {}));
        return { data, text: json(data) };
      });
    });
  asked(privacy, 'erase', 'erase the addresses of a person, for good')
    .argument('<SUBJECT>', SUBJECT, orStdin(dataSubject))
    .option('--yes', 'do it; there is no way back')
    .addHelpText('after', HELP)
    .action((subject: DataSubject, { yes, ...by }: AskedBy & { readonly yes?: true }, command: Command) => {
      refuseAddress(by, command);
      return run(null, async (db) => {
        if (yes) return reportErasure(await eraseSubject(db, by, subject));
        const held = await exportSubject(db, subject);
        const counts = {
          storedEmails: held.stored_emails.length,
          emailChecks: held.email_checks.length,
          answers: held.requests.filter(({ email }) => email !== null).length,
        };
        const text = `${fields(counts)}\n\nNothing was erased: add --yes to erase it for good.`;
        return { data: { erased: false, ...counts }, text, exitCode: 1 };
      });
    });
  newestFirst(
    privacy.command('list').description('the register: exports, erasures, objections, newest first'),
  ).action(({ limit }: { readonly limit: number }) =>
    run(null, async (db) => plain(await listPrivacyRequests(db, limit))),
  );
}

/** Adds what the register has beside the audit log's own; the options are then an `AskedBy`. */
function asked(parent: Command, name: string, description: string): Command {
  return change(parent, name, description)
    .addOption(
      new Option('--asked-by <WHO>', 'who asked').choices(['person', 'agent', 'authority']).default('person'),
    )
    .option(
      '--received <WHEN>',
      'when: 24h (ago), 2026-11-20T00:00Z; now if it is not said',
      pastMoment,
      new Date(),
    );
}

/** The audit log is never erased. */
function refuseAddress({ reason }: AskedBy, command: Command): void {
  if (!reason.includes('@')) return;
  command.error('error: name no address in --reason: it is kept forever');
}

function dataSubject(text: string): DataSubject {
  const trimmed = text.trim();
  if (/^[0-9]{10}$/.test(trimmed)) return { npi: trimmed };
  const address = parseAddress(trimmed);
  if (address) return { email: address.email };
  throw new InvalidArgumentError(`Write ${SUBJECT}.`);
}

function reportErasure(erasure: Erasure): Report {
  const isNothing = Object.values(erasure).every((count) => count === 0);
  const closing = isNothing
    ? 'Nothing was left to erase.'
    : "Erased. custom_data is the customer's own and was kept.";
  return { data: { erased: true, ...erasure }, text: `${fields(erasure)}\n\n${closing}` };
}
