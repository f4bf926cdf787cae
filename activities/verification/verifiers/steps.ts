import type { HttpAnswer } from '../../http/client.ts';
import { bodyOf, type Field, FieldError } from '../../http/fields.ts';
import { stepOfStatus as vendorStepOfStatus } from '../../vendors/steps.ts';
import type { MailboxReason, VerifierStep } from './verifier.ts';

// What means the same at every verifier.

type Verdict = Extract<VerifierStep, { kind: 'answer' }>['verdict'];

/** @param reason null where the verdict says it all */
export function answer(verdict: Verdict, reason: MailboxReason | null): VerifierStep {
  return { kind: 'answer', verdict, reason };
}

/** For words that a verifier does not document: nothing is guessed from them. */
export const INCONCLUSIVE = answer('unknown', 'inconclusive');

/** @param field where the answer is not as documented, such as `smtp.is_disabled`, `status` or `body` */
export function protocol(field: string): VerifierStep {
  return { kind: 'fatal', why: 'protocol', field };
}

/** What `read` makes of a JSON body; `protocol` where it throws a {@link FieldError}. */
export function stepOfBody({ text }: HttpAnswer, read: (body: Field) => VerifierStep): VerifierStep {
  try {
    return read(bodyOf(text));
  } catch (error) {
    if (error instanceof FieldError) return protocol(error.field);
    throw error;
  }
}

/** What a status means where the verifier gives it no meaning of its own; as for vendors, but nobody is `blocked`. */
export function stepOfStatus(httpAnswer: HttpAnswer): VerifierStep {
  const step = vendorStepOfStatus(httpAnswer);
  return step.kind === 'retry' || step.kind === 'fatal' ? step : protocol('status');
}
