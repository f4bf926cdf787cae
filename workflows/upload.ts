import {
  CancellationScope,
  isCancellation,
  setCurrentDetails,
} from '@temporalio/workflow';
import type { UploadInput } from './messages.ts';
import { db, submitNextPart } from './options.ts';

/**
 * Submits a file of the console part after part, each as one batch. All facts are in PostgreSQL, so
 * an upload whose workflow was terminated continues where it stopped. Canceling the workflow stops
 * the upload.
 */
export async function submitUpload({ uploadId }: UploadInput): Promise<void> {
  try {
    let step = await submitNextPart({ uploadId });
    while (step.kind === 'submitted') {
      setCurrentDetails(`**${step.submitted} of ${step.parts}** parts submitted`);
      step = await submitNextPart({ uploadId });
    }
  } catch (error) {
    if (!isCancellation(error)) throw error;
    await CancellationScope.nonCancellable(() => db.stopUpload({ uploadId }));
    throw error;
  }
}
