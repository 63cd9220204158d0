/* SPDX-License-Identifier: PostgreSQL */
/*
 * Losses phi(u, y) of a linear score u = <w, x>, for rows with ||x||_2 <= 1.
 * With n_classes > 1 there are K scores, and the loss is softmax, or the sum of
 * K binary losses, one a class against all others.
 * L bounds the data gradient and beta the data Hessian; the regulariser is in
 * neither (privacy/README.md, "Losses").
 */
#ifndef DPML_LOSS_H
#define DPML_LOSS_H

#include <stdint.h>

enum DpmlLossKind
{
	DPML_LOGISTIC = 0,			/* ln(1 + exp(-y u)), y in {-1, +1} */
	DPML_HUBER_SVM = 1,			/* hinge smoothed on |1 - y u| <= h */
	DPML_SQUARED = 2,			/* (u - y)^2 / 2, Huber beyond the clip */
	DPML_SOFTMAX = 3,			/* -ln p_y, y in {0 .. K-1} */
	DPML_HINGE = 4,				/* max(0, 1 - y u), y in {-1, +1}; not smooth */
	DPML_LOSS_KINDS = 5			/* how many there are */
};

enum DpmlLossLabel
{
	DPML_SIGN_LABEL = 0,		/* -1 or +1; with several classes a score each, that class against all others */
	DPML_NUMBER_LABEL = 1,
	DPML_CLASS_LABEL = 2		/* 0 .. K-1, of K scores together */
};

/* What there is to know of a kind of loss beside its formulas. */
typedef struct DpmlLossFacts
{
	char		name[16];		/* in options and in stored models */
	int32_t		label;			/* enum DpmlLossLabel */
	int32_t		has_probability;	/* 1: 1 / (1 + exp(-u)) of a score, or the softmax of K, is one */
} DpmlLossFacts;

/* The facts of a kind; NULL where there is none. */
const DpmlLossFacts *dpml_loss_facts(int32_t kind);

typedef struct DpmlLoss
{
	int32_t		kind;			/* enum DpmlLossKind */
	int32_t		n_classes;		/* K, rows of the weight matrix: >= 2 for softmax and one-vs-all, else 1 */
	double		huber_h;		/* half width of the Huber SVM's bend, > 0 */
	double		clip;			/* bound on |d phi / d u| of one score, > 0; infinity for none.  Not for softmax. */
} DpmlLoss;

/* Half width of the Huber SVM's bend where none is chosen. */
double		dpml_default_huber_h(void);

/* Value and derivative in u of a scalar loss; with a clip, those of the convex loss whose derivative is clipped. */
double		dpml_loss_value(const DpmlLoss *loss, double u, double y);
double		dpml_loss_derivative(const DpmlLoss *loss, double u, double y);

/* Second derivative in u; 0 where the derivative is clipped, and where a bend or corner begins or ends. */
double		dpml_loss_curvature(const DpmlLoss *loss, double u, double y);

/* Softmax value, and its gradient in the K scores (probabilities minus the one-hot label). */
double		dpml_softmax_value(int32_t n_classes, const double *scores, int32_t label);
void		dpml_softmax_gradient(int32_t n_classes, const double *scores, int32_t label, double *gradient);

/* The same for any loss of n_classes > 1 scores; label in 0 .. K-1.  gradient may be the same array as scores. */
double		dpml_classes_value(const DpmlLoss *loss, const double *scores, int32_t label);
void		dpml_classes_gradient(const DpmlLoss *loss, const double *scores, int32_t label, double *gradient);

/* L in the Frobenius norm of the K x d gradient, and beta: infinity for a loss that is not smooth. */
double		dpml_loss_lipschitz(const DpmlLoss *loss);
double		dpml_loss_smoothness(const DpmlLoss *loss);

/*
 * m beta: bounds the Hessian of a batch of b units of up to m rows, divided by b
 * (privacy/README.md, "Unit of privacy").
 */
double		dpml_loss_unit_smoothness(const DpmlLoss *loss, int32_t max_rows_per_unit);

#endif
