import type { Chapter, EvidenceAttempt, EvidenceCheck, EvidenceRequest } from '../../db/lookups/evidence.ts';

/** One line of a story. Of the same moment, what caused the other stands first. */
interface Happening {
  readonly at: Date;
  readonly rank: number;
  readonly what: string;
}

/** What became of one address in a lookup. */
export interface CandidateFate {
  readonly email: string;
  /** The sources that named it. */
  readonly namedBy: string;
  /** Null while it waits for our checks. */
  readonly verdict: string | null;
  readonly reason: string | null;
  /** Whose word the verdict rests on. */
  readonly decidedBy: string | null;
  readonly isReturned: boolean;
}

/** A chapter as text: a heading, then what happened in the order of time, each line with its moment. */
export function storyOf(chapter: Chapter): string {
  const { lookup, requests, attempts, checks } = chapter;
  const happenings = [
    ...requests.flatMap((request) => [...accepted(request), ...settled(request)]),
    ...(lookup === null
      ? []
      : [
          {
            at: lookup.openedAt,
            rank: 1,
            what: `lookup ${lookup.id} begins, for a wanted type of ${lookup.wantedType}`,
          },
        ]),
    ...attempts.flatMap(asked),
    ...checks.map(checked),
    ...(lookup?.closedAt ? [{ at: lookup.closedAt, rank: 5, what: 'lookup ends' }] : []),
  ];
  const lines = happenings
    .sort((a, b) => a.at.getTime() - b.at.getTime() || a.rank - b.rank)
    .map(({ at, what }) => `${at.toISOString()}  ${printable(what)}`);
  return [headingOf(chapter), ...lines].join('\n');
}

/** The addresses that came up in a lookup, in the order in which they did. */
export function candidatesOf({ requests, checks }: Chapter): CandidateFate[] {
  return [...Map.groupBy(checks, ({ email }) => email)].map(([email, lines]) => {
    const named = lines.filter(({ kind }) => kind === 'named').map(({ source }) => source);
    // What is found to be another person's gets no further.
    const last = lines.findLast(({ kind }) => kind === 'verdict' || kind === 'identity');
    const isRefused = last?.kind === 'identity';
    const basis = lines.findLast(({ kind, verdict }) => kind !== 'verdict' && verdict === last?.verdict);
    return {
      email,
      namedBy: [...new Set(named)].join(', '),
      verdict: last === undefined ? null : isRefused ? 'rejected' : last.verdict,
      reason: last?.reason ?? null,
      decidedBy: last === undefined ? null : isRefused ? 'identity check' : basis ? nameOf(basis) : 'policy',
      isReturned: requests.some((request) => request.email === email),
    };
  });
}

function headingOf({ lookup, requests }: Chapter): string {
  const [first] = requests;
  const others = (lookup?.requestCount ?? 0) - requests.length;
  const shared = others > 0 ? `, shared with ${others} more request${others === 1 ? '' : 's'}` : '';
  return lookup === null
    ? `REQUEST ${first?.id ?? ''}, answered without a lookup`
    : `LOOKUP ${lookup.id}${shared}`;
}

function accepted({
  id,
  organizationId,
  batchId,
  wantedType,
  acceptedAt,
  deadlineAt,
}: EvidenceRequest): Happening[] {
  const what = `${id} of ${organizationId} accepted in ${batchId}: wants ${wantedType}, by ${deadlineAt.toISOString()}`;
  return [{ at: acceptedAt, rank: 0, what }];
}

function settled(request: EvidenceRequest): Happening[] {
  const { id, status, reason, settledAt, erasedAt, replayed, creditsUsed } = request;
  if (settledAt === null) return [{ at: new Date(), rank: 9, what: `${id} is still ${status}` }];
  const price = replayed
    ? 'free replay'
    : creditsUsed === 0
      ? 'nothing charged'
      : credits(creditsUsed, 'charged');
  const what =
    status === 'completed'
      ? `completed with ${answer(request)}`
      : `${status}: ${reason ?? 'no reason noted'}`;
  const erased = erasedAt && { at: erasedAt, rank: 8, what: `address erased from the answer of ${id}` };
  return [{ at: settledAt, rank: 6, what: `${id} ${what}; ${price}` }, ...(erased ? [erased] : [])];
}

function answer({ email, emailType, emailLastValidatedAt }: EvidenceRequest): string {
  if (email === null) return 'an address that was erased since';
  return `${email} (${emailType}, validated ${emailLastValidatedAt?.toISOString()})`;
}

function asked(attempt: EvidenceAttempt): Happening[] {
  const { vendor, n, state, reason, startedAt, endedAt, polls, candidates } = attempt;
  const why = reason === null ? '' : ` (${reason})`;
  if (state === 'skip') return [{ at: startedAt, rank: 2, what: `${vendor} not asked${why}` }];
  const question = { at: startedAt, rank: 2, what: `${vendor} asked${n === 1 ? '' : `, time ${n}`}` };
  if (endedAt === null) return [question];
  const facts = [
    `after ${endedAt.getTime() - startedAt.getTime()} ms`,
    ...(polls === 0 ? [] : [`${polls} poll${polls === 1 ? '' : 's'}`]),
    ...(state === 'found' ? [`${candidates} candidate${candidates === 1 ? '' : 's'}`] : []),
    credits(attempt.credits, 'of the vendor'),
  ];
  return [question, { at: endedAt, rank: 3, what: `${vendor} answers ${state}${why} ${facts.join(', ')}` }];
}

function checked(check: EvidenceCheck): Happening {
  const { at, email, kind, source, verdict, reason, durationMs } = check;
  const why = reason === null ? '' : ` (${reason})`;
  const time = durationMs === null ? '' : ` in ${durationMs} ms`;
  switch (kind) {
    case 'named':
      return { at, rank: 4, what: `${email} named by ${source} as ${verdict}${why}` };
    case 'identity':
      return { at, rank: 4, what: `${email} rejected${why}: it belongs to somebody else` };
    case 'local':
    case 'verifier':
      return { at, rank: 4, what: `${email} ${verdict}${why} by ${nameOf(check)}${time}` };
    case 'verdict':
      return {
        at,
        rank: 4,
        what: `${email} ${verdict === 'valid' ? 'accepted' : `rejected as ${verdict}`}${why}`,
      };
    default:
      return kind satisfies never;
  }
}

function nameOf({ kind, source }: EvidenceCheck): string {
  if (kind === 'local') return 'our own checks';
  return kind === 'verifier' ? `verifier ${source}` : source;
}

function credits(amount: number, whose: string): string {
  return `${amount} credit${amount === 1 ? '' : 's'} ${whose}`;
}

/** Reasons come from vendors: none may move a terminal's cursor. */
function printable(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}]/gu, '\u{fffd}');
}
