import {
  ActivityFailure,
  CancellationScope,
  continueAsNew,
  isCancellation,
  log,
  setCurrentDetails,
  setWorkflowOptions,
  workflowInfo,
} from '@temporalio/workflow';
import type { UploadInput } from './messages.ts';
import { local, notices, submitNextPart, upgrading } from './options.ts';

/**
 * Submits a file of the console part after part, each as one batch. All facts are in PostgreSQL, so
 * an upload whose workflow was terminated continues where it stopped, and so does a new run. Canceling
 * the workflow stops the upload.
 */
export async function submitUpload({ uploadId }: UploadInput): Promise<void> {
  try {
    let step = await submitNextPart({ uploadId });
    while (step.kind === 'submitted') {
      setCurrentDetails(`**${step.submitted} of ${step.parts}** parts submitted`);
      if (workflowInfo().continueAsNewSuggested && !isCanceled()) {
        await continueAsNew<typeof submitUpload>({ uploadId });
      }
      step = await submitNextPart({ uploadId });
    }
    // Only steps that newer workers recorded have this, so older runs replay without the email.
    if (step.hasNotice) await notify(uploadId);
  } catch (error) {
    if (!isCancellation(error)) throw error;
    await CancellationScope.nonCancellable(() => local.stopUpload({ uploadId }));
    throw error;
  }
}

setWorkflowOptions(upgrading, submitUpload);

/** Sends the email about the end. An email that can't be sent does not fail the upload. */
async function notify(uploadId: string): Promise<void> {
  try {
    await notices(workflowInfo().taskQueue).notifyEnd({ uploadId });
  } catch (error) {
    if (isCancellation(error) || !(error instanceof ActivityFailure)) {
      throw error;
    }
    log.warn('the email about the end of an upload was not sent');
  }
}

/**
 * Returns true if the workflow was canceled while its activity succeeded. The next activity then
 * throws, but a new run would not know about the cancellation.
 */
function isCanceled(): boolean {
  return CancellationScope.current().consideredCancelled;
}
