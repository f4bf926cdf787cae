import { type Command, InvalidArgumentError } from 'commander';
import { buildSubject } from '../../activities/person/subject.ts';
import type { Organization } from '../../activities/vendors/vendor.ts';
import { recordReading } from '../../db/audit.ts';
import { isId } from '../../db/ids.ts';
import { type Evidence, readEvidence } from '../../db/lookups/evidence.ts';
import { readProvider } from '../../db/providers/subject.ts';
import { type Revealing, revealer, revealing } from './arguments.ts';
import { candidatesOf, storyOf } from './explain-story.ts';
import { fields, maskedEmail, type Run, table } from './print.ts';

/** `explain`. */
export function addExplainCommands(program: Command, run: Run): void {
  revealing(program.command('explain'), 'addresses')
    .description(
      'how a request, or the newest requests of an NPI, came to an answer: who was asked, what each said',
    )
    .argument('<REQUEST_OR_NPI>', 'request id (req_…) or NPI', reference)
    .action((about: Reference, options: Revealing, command: Command) => {
      const by = revealer(options, command);
      return run('requestId' in about ? about.requestId : null, async (db) => {
        const held = await readEvidence(db, about);
        const [whose, subject] =
          'npi' in about
            ? [null, about.npi]
            : [held.chapters[0]?.requests[0]?.organizationId, about.requestId];
        if (by) {
          const what = { action: 'explain.reveal', organizationId: whose ?? null, subject } as const;
          await recordReading(db, by, what);
        }
        const evidence = by ? held : masked(held);
        // As a lookup would derive it now: what vendors that search by name are told.
        const facts = await readProvider(db, held.npi);
        const { organization } = buildSubject(held.npi, facts, 'any');
        const chapters = evidence.chapters.map((chapter) => ({
          ...chapter,
          candidates: candidatesOf(chapter),
        }));
        return { data: { ...evidence, organization, chapters }, text: textOf(evidence, organization) };
      });
    });
}

type Reference = Parameters<typeof readEvidence>[1];

function reference(text: string): Reference {
  if (isId('req', text)) return { requestId: text };
  if (/^[0-9]{10}$/.test(text)) return { npi: text };
  throw new InvalidArgumentError('Write a request id (req_…) or an NPI of 10 digits.');
}

/** Each address by what is left of it, with a number where that would be two addresses' alike. */
function masked(evidence: Evidence): Evidence {
  const labels = new Map<string, string>();
  const times = new Map<string, number>();
  const labelOf = (email: string): string => {
    const known = labels.get(email);
    if (known !== undefined) return known;
    const short = maskedEmail(email);
    const n = (times.get(short) ?? 0) + 1;
    times.set(short, n);
    const label = n === 1 ? short : `${short} (${n})`;
    labels.set(email, label);
    return label;
  };
  const mask = <T extends { readonly email: string | null }>(row: T): T => ({
    ...row,
    email: row.email === null ? null : labelOf(row.email),
  });
  return {
    ...evidence,
    chapters: evidence.chapters.map((chapter) => ({
      ...chapter,
      requests: chapter.requests.map(mask),
      checks: chapter.checks.map(mask),
    })),
    otherChecks: evidence.otherChecks.map(mask),
    stored: evidence.stored.map(mask),
  };
}

/** `Harbor Family Medicine, harborfamily.com (same_phone, confidence 0.7)`. */
function employer({ name, domain, source, confidence }: Organization): string {
  const parts = [name, domain].filter((part) => part !== null);
  return `${parts.join(', ')} (${source}, confidence ${Math.round(confidence * 100) / 100})`;
}

function textOf(evidence: Evidence, organization: Organization | null): string {
  const { provider, stored, chapters, otherChecks } = evidence;
  const parts = [
    fields({
      npi: evidence.npi,
      provider: provider === null ? 'unknown: not in the NPPES tables' : entity(provider.entityType),
      name: provider && nameOf(provider),
      'works at': organization && employer(organization),
      active: provider?.active ?? null,
      'deactivated on': provider?.deactivatedOn ?? null,
      'known from': provider?.origin ?? null,
      'endpoints in NPPES': evidence.endpoints,
      suppressed: evidence.isSuppressed,
    }),
    ...chapters.flatMap((chapter) => [
      storyOf(chapter),
      ...(chapter.checks.length === 0
        ? []
        : [
            table(candidatesOf(chapter), {
              CANDIDATE: ({ email }) => email,
              'NAMED BY': ({ namedBy }) => namedBy,
              VERDICT: ({ verdict }) => verdict,
              REASON: ({ reason }) => reason,
              'DECIDED BY': ({ decidedBy }) => decidedBy,
              RETURNED: ({ isReturned }) => isReturned,
            }),
          ]),
    ]),
    ...(otherChecks.length === 0
      ? []
      : [
          `CHECKED AGAIN, no request waiting\n${table(otherChecks, {
            WHEN: ({ at }) => at,
            ADDRESS: ({ email }) => email,
            CHECK: ({ kind }) => kind,
            SOURCE: ({ source }) => source,
            VERDICT: ({ verdict }) => verdict,
            REASON: ({ reason }) => reason,
          })}`,
        ]),
    `IN THE DIRECTORY NOW\n${table(stored, {
      ADDRESS: ({ email }) => email,
      TYPE: ({ emailType }) => emailType,
      VERDICT: ({ verdict, unchecked }) => (unchecked ? `${verdict}, to be checked` : verdict),
      REASON: ({ reason }) => reason,
      VALIDATED: ({ lastValidatedAt }) => lastValidatedAt,
      SOURCE: ({ source }) => source,
      'MAY BE KEPT': ({ mayStore }) => mayStore,
      SUPPRESSED: ({ isSuppressed }) => isSuppressed,
    })}`,
  ];
  return parts.join('\n\n');
}

function entity(entityType: number | null): string {
  if (entityType === null) return 'deactivated: NPPES says no more';
  return entityType === 1 ? 'person (type 1)' : 'organization (type 2)';
}

function nameOf(provider: NonNullable<Evidence['provider']>): string | null {
  const { organizationName, firstName, middleName, lastName, credential } = provider;
  const name = [firstName, middleName, lastName, credential].filter((part) => part !== null && part !== '');
  return organizationName ?? (name.length === 0 ? null : name.join(' '));
}
