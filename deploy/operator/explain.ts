import type { Command } from 'commander';
import { buildSubject } from '../../activities/person/subject.ts';
import type { Organization } from '../../activities/vendors/vendor.ts';
import { printable } from '../../api/client/printable.ts';
import { isId } from '../../db/ids.ts';
import {
  type Chapter,
  type Evidence,
  type EvidenceAttempt,
  type EvidenceCheck,
  type EvidenceRequest,
  type EvidenceSlot,
  readEvidence,
} from '../../db/lookups/evidence.ts';
import { readProvider } from '../../db/providers/subject.ts';
import { temporalUi } from '../config/config.ts';
import { parser, type Revealing, revealed, revealing } from './arguments.ts';
import { counted, fields, type Run, table } from './print.ts';

/** Adds `explain`. */
export function addCommands(program: Command, run: Run): void {
  revealing(program.command('explain'), 'addresses')
    .description(
      'how a request, or the newest requests of an NPI, came to an answer: who was asked, what each said',
    )
    .argument('<REQUEST_OR_NPI>', 'request id (req_…) or NPI', reference)
    .action((about: Reference, by: Revealing) =>
      run(async (db) => {
        const held = await readEvidence(db, about);
        const isNpi = 'npi' in about;
        const evidence = await revealed(db, held, by, {
          action: 'explain.reveal',
          organizationId: isNpi ? null : (held.chapters[0]?.requests[0]?.organizationId ?? null),
          subject: isNpi ? about.npi : about.requestId,
        });
        // The organization as a lookup would derive it now. Vendors that search by name get it.
        const facts = await readProvider(db, held.npi);
        const { organization } = buildSubject(held.npi, facts, 'any');
        const chapters = evidence.chapters.map((chapter) => ({
          ...chapter,
          candidates: candidatesOf(chapter),
        }));
        return {
          data: { ...evidence, organization, chapters },
          text: textOf(evidence, organization),
        };
      }),
    );
}

type Reference = Parameters<typeof readEvidence>[1];

const reference = parser(
  'a request id (req_…) or an NPI of 10 digits',
  (text): Reference | null => {
    if (isId('req', text)) return { requestId: text };
    return /^[0-9]{10}$/.test(text) ? { npi: text } : null;
  },
);

/** Returns `Harbor Family Medicine, harborfamily.com (same_phone, confidence 0.7)`. */
function employer({ name, domain, source, confidence }: Organization): string {
  const parts = [name, domain].filter((part) => part !== null);
  return `${parts.join(', ')} (${source}, confidence ${Math.round(confidence * 100) / 100})`;
}

function textOf(evidence: Evidence, organization: Organization | null): string {
  const { provider, stored, chapters, otherChecks, suppressions } = evidence;
  const ui = temporalUi();
  const parts = [
    fields({
      npi: evidence.npi,
      provider:
        provider === null ? 'unknown: not in the NPPES tables' : entity(provider.entityType),
      name: provider && nameOf(provider),
      'works at': organization && employer(organization),
      active: provider?.active ?? null,
      'deactivated on': provider?.deactivatedOn ?? null,
      'known from': provider?.origin ?? null,
      'endpoints in NPPES': evidence.endpoints,
      suppressed: suppression(evidence),
      ...(ui && { temporal: `${ui}?query=${encodeURIComponent(`Npi = "${evidence.npi}"`)}` }),
    }),
    ...(suppressions.length === 0 ? [] : [`SUPPRESSED BY\n${table(suppressions)}`]),
    ...chapters.flatMap((chapter) => [
      storyOf(chapter),
      ...(chapter.checks.length === 0 ? [] : [table(candidatesOf(chapter))]),
    ]),
    ...(otherChecks.length === 0
      ? []
      : [
          `CHECKED AGAIN, no request waiting\n${table(otherChecks, ['at', 'email', 'kind', 'source', 'verdict', 'reason'])}`,
        ]),
    `IN THE DIRECTORY NOW\n${table(stored, STORED)}`,
  ];
  return parts.join('\n\n');
}

/** The columns that are printed for a stored address. */
const STORED = [
  'email',
  'emailType',
  'verdict',
  'unchecked',
  'reason',
  'lastValidatedAt',
  'source',
  'mayStore',
  'isSuppressed',
] as const;

function suppression({ isSuppressed, stored }: Evidence): true | string {
  if (isSuppressed) return true;
  const addresses = stored.filter((row) => row.isSuppressed).length;
  // Refers only to the addresses below: a suppressed address from a vendor is dropped without a
  // trace.
  return addresses > 0 ? `${addresses} of its addresses` : 'not the NPI, and no address below';
}

function entity(entityType: number | null): string {
  if (entityType === null) return 'deactivated: NPPES says no more';
  return entityType === 1 ? 'person (type 1)' : 'organization (type 2)';
}

function nameOf(provider: NonNullable<Evidence['provider']>): string | null {
  const { organizationName, firstName, middleName, lastName, credential } = provider;
  const name = [firstName, middleName, lastName, credential].filter(
    (part) => part !== null && part !== '',
  );
  return organizationName ?? (name.length === 0 ? null : name.join(' '));
}

/**
 * A line of a story, left out while its time is null. At equal times, the lower rank comes first,
 * because it is the cause.
 */
type Happening = readonly [at: Date | null, rank: number, what: string];

/** Returns a chapter as text: a heading, then a line for each event with its time, in order. */
function storyOf({ lookup, requests, attempts, checks, slots }: Chapter): string {
  const happenings = [
    ...requests.flatMap(acceptedAndSettled),
    ...attempts.flatMap(asked),
    ...checks.map(checked),
    ...slots.map(waits),
  ];
  let heading = `REQUEST ${requests[0]?.id}, answered without a lookup`;
  if (lookup) {
    const { id, openedAt, closedAt, wantedType, requestCount } = lookup;
    const others = requestCount - requests.length;
    heading = `LOOKUP ${id}${others > 0 ? `, shared with ${counted(others, 'more request')}` : ''}`;
    happenings.push([openedAt, 1, `lookup ${id} begins, for a wanted type of ${wantedType}`]);
    happenings.push([closedAt, 5, 'lookup ends']);
  }
  const lines = happenings
    .flatMap(([at, rank, what]) => (at ? [{ at, rank, what }] : []))
    .sort((a, b) => a.at.getTime() - b.at.getTime() || a.rank - b.rank)
    .map(({ at, what }) => `${at.toISOString()}  ${printable(what)}`);
  return [heading, ...lines].join('\n');
}

/**
 * Returns the addresses of a lookup in order of appearance: the sources that named each, its
 * verdict (null until our checks end), and the source of the verdict.
 */
function candidatesOf({ requests, checks }: Chapter) {
  return [...Map.groupBy(checks, ({ email }) => email)].map(([email, lines]) => {
    const named = lines.filter(({ kind }) => kind === 'named').map(({ source }) => source);
    // An address that belongs to another person is not checked any further.
    const last = lines.findLast(({ kind }) => kind === 'verdict' || kind === 'identity');
    const isRefused = last?.kind === 'identity';
    const basis = lines.findLast(
      ({ kind, verdict }) => kind !== 'verdict' && verdict === last?.verdict,
    );
    return {
      email,
      namedBy: [...new Set(named)].join(', '),
      verdict: last === undefined ? null : isRefused ? 'rejected' : last.verdict,
      reason: last?.reason ?? null,
      decidedBy:
        last === undefined
          ? null
          : isRefused
            ? 'identity check'
            : basis
              ? speakerOf(basis)
              : 'policy',
      isReturned: requests.some((request) => request.email === email),
    };
  });
}

function acceptedAndSettled(request: EvidenceRequest): Happening[] {
  const { id, organizationId, batchId, wantedType, acceptedAt, deadlineAt } = request;
  const { status, reason, settledAt, erasedAt, replayed, creditsUsed } = request;
  const wish = `wants ${wantedType}, by ${deadlineAt.toISOString()}`;
  const price = creditsUsed === 0 ? 'nothing charged' : `${counted(creditsUsed, 'credit')} charged`;
  const what =
    status === 'completed'
      ? `completed with ${answer(request)}`
      : `${status}: ${reason ?? 'no reason noted'}`;
  return [
    [acceptedAt, 0, `${id} of ${organizationId} accepted in ${batchId}: ${wish}`],
    settledAt
      ? [settledAt, 6, `${id} ${what}; ${replayed ? 'free replay' : price}`]
      : [new Date(), 9, `${id} is still ${status}`],
    [erasedAt, 8, `address erased from the answer of ${id}`],
  ];
}

function answer({ email, emailType, emailLastValidatedAt }: EvidenceRequest): string {
  if (email === null) return 'an address that was erased since';
  return `${email} (${emailType}, validated ${emailLastValidatedAt?.toISOString()})`;
}

function asked(attempt: EvidenceAttempt): Happening[] {
  const { vendor, n, state, reason, startedAt, endedAt, polls, candidates, waitedMs } = attempt;
  const why = reason === null ? '' : ` (${reason})`;
  if (state === 'skip') return [[startedAt, 2, `${vendor} not asked${why}`]];
  const facts = [
    `after ${endedAt && endedAt.getTime() - startedAt.getTime()} ms`,
    ...(polls === 0 ? [] : [counted(polls, 'poll')]),
    ...(state === 'found' ? [counted(candidates, 'candidate')] : []),
    `${counted(attempt.credits, 'credit')} of the vendor`,
  ];
  return [
    [startedAt, 2, `${vendor} asked${n === 1 ? '' : `, time ${n}`}${afterWait(waitedMs)}`],
    [endedAt, 3, `${vendor} answers ${state}${why} ${facts.join(', ')}`],
  ];
}

/**
 * Returns how long a call waited for the rate limits of its source, or an empty text if it did not
 * wait.
 */
function afterWait(waitedMs: number | null): string {
  return waitedMs === null || waitedMs === 0
    ? ''
    : `, after ${waitedMs} ms of waiting for its rate limit`;
}

function waits({ source, requestId, askedAt, slotAt }: EvidenceSlot): Happening {
  const since = askedAt.toISOString();
  return [
    slotAt,
    7,
    `${requestId} is expected to call ${source}: it waits for its rate limit since ${since}`,
  ];
}

function checked(check: EvidenceCheck): Happening {
  const { at, email, kind, source, verdict, reason, durationMs, waitedMs } = check;
  const why = reason === null ? '' : ` (${reason})`;
  const time = durationMs === null ? '' : ` in ${durationMs} ms`;
  const ours = `${verdict}${why} by ${speakerOf(check)}${time}${afterWait(waitedMs)}`;
  const what: Record<typeof kind, string> = {
    named: `named by ${source} as ${verdict}${why}`,
    identity: `rejected${why}: it belongs to somebody else`,
    local: ours,
    verifier: ours,
    verdict: `${verdict === 'valid' ? 'accepted' : `rejected as ${verdict}`}${why}`,
  };
  return [at, 4, `${email} ${what[kind]}`];
}

function speakerOf({ kind, source }: EvidenceCheck): string {
  if (kind === 'local') return 'our own checks';
  return kind === 'verifier' ? `verifier ${source}` : source;
}
